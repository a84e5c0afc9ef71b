// What all kernels share: registers of floats, and the one loop in which nearly all the time goes.

#pragma once

#include <cstdint>
#include <cstring>
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
// For loops that fill all registers: inlined side by side, compilers begin to keep some of their sums in memory.
#define ALONE __attribute__((noinline))

// LANES: floats in a register. TILE_ROWS: rows whose sums fit into the registers, beside two registers of a second
// operand. Other widths may be asked for, for tests; they compute the same.
#if !defined(LANES)
#if defined(__AVX512F__)
#define LANES 16
#define TILE_ROWS 12
#elif defined(__AVX2__)
#define LANES 8
#define TILE_ROWS 6
#else
#define LANES 4
#define TILE_ROWS 6
#endif
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint16_t short_vec __attribute__((vector_size(LANES * 2)));

// Numbers of 16 bits as they lie in memory; all arithmetic is in float. Half: IEEE binary16. Brain: bfloat16.
struct Half {
    uint16_t bits;
};
struct Brain {
    uint16_t bits;
};

INLINE vec load(const float *from) {
    vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float *to, vec v) { std::memcpy(to, &v, sizeof v); }

INLINE vec all(float x) { return x + vec{}; }

// The upper half of a float.
INLINE vec load(const Brain *from) {
    short_vec bits;
    std::memcpy(&bits, from, sizeof bits);
    return (vec)(__builtin_convertvector(bits, ivec) << 16);
}

// Rounded to the nearest, of two to the even one.
INLINE void store(Brain *to, vec v) {
    const ivec bits = (ivec)v;
    const short_vec rounded = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, short_vec);
    std::memcpy(to, &rounded, sizeof rounded);
}

#if defined(__AVX512F__) && LANES == 16
INLINE vec load(const Half *from) { return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }
INLINE void convert(Half *to, vec v) { _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)v, 0)); }
#elif defined(__F16C__) && LANES == 8
INLINE vec load(const Half *from) { return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }
INLINE void convert(Half *to, vec v) { _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)v, 0)); }
#else
// Exponent and mantissa in a float's place are the number times 2^-112, be it a subnormal one or not.
INLINE vec load(const Half *from) {
    short_vec bits;
    std::memcpy(&bits, from, sizeof bits);
    const ivec wide = __builtin_convertvector(bits, ivec);
    const vec size = (vec)((wide & 0x7fff) << 13) * 0x1p112f;
    return (vec)((ivec)size | (wide & 0x8000) << 16);
}

INLINE void convert(Half *to, vec v) {
    const ivec sign = (ivec)v & (int32_t)0x80000000;
    const vec size = (vec)((ivec)v ^ sign);
    // Adding 0.5 leaves a subnormal half, a multiple of 2^-24, in a float's last bits, rounded as every sum is.
    const ivec subnormal = (ivec)(size + 0.5f) - (ivec)all(0.5f);
    const ivec scaled = (ivec)(size * 0x1p-112f);
    const ivec normal = (scaled + 0xfff + ((scaled >> 13) & 1)) >> 13;
    const ivec bits = (size < 0x1p-14f ? subnormal : normal) | ((sign >> 16) & 0x8000);
    const short_vec result = __builtin_convertvector(bits, short_vec);
    std::memcpy(to, &result, sizeof result);
}
#endif

// Rounded likewise. What is larger than the largest half becomes that: an infinite key would make every weight a NaN.
INLINE void store(Half *to, vec v) {
    const vec below = v > 65504.0f ? all(65504.0f) : v;
    convert(to, below < -65504.0f ? all(-65504.0f) : below);
}

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

INLINE float sum(vec v) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += v[lane];
    return total;
}

INLINE float largest(vec v) {
    float best = v[0];
    for (int lane = 1; lane < LANES; lane++) best = v[lane] > best ? v[lane] : best;
    return best;
}

// exp(x), 0 below -87: 2^n times Taylor's polynomial of the rest, which lies within half of ln 2 around 0.
INLINE vec exponential(vec x) {
    const float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    const float round = 12582912.0f;  // adding 1.5 * 2^23 leaves a float's nearest integer in its last bits
    const vec bounded = x > 88.0f ? all(88.0f) : x;
    const vec rounded = bounded * log2_e + round;
    const vec n = rounded - round;
    const vec rest = (bounded - n * ln2_high) - n * ln2_low;
    vec result = all(1.0f / 5040);
    result = result * rest + 1.0f / 720;
    result = result * rest + 1.0f / 120;
    result = result * rest + 1.0f / 24;
    result = result * rest + 1.0f / 6;
    result = result * rest + 0.5f;
    result = result * rest + 1.0f;
    result = result * rest + 1.0f;
    const ivec power = ((ivec)rounded - (ivec)all(round) + 127) << 23;
    return x < -87.0f ? vec{} : result * (vec)power;
}

// Memory that will be read soon, fetched a little with each step of a loop.
struct Ahead {
    const char *at;
    int64_t step;  // bytes
};

// sums [ROWS, PARTS * LANES] += a [ROWS, depth] times b [depth, PARTS * LANES]; the strides are in numbers.
//
// Every sum runs over the depth in order, whatever rows stand beside it: a row's result never depends on its batch.
template <int ROWS, int PARTS, typename Number>
INLINE void multiply(const float *a, int64_t a_stride, const Number *b, int64_t b_stride, int64_t depth,
                     vec (&sums)[ROWS][PARTS], Ahead ahead) {
    for (int64_t k = 0; k < depth; k++) {
        vec b_row[PARTS];
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) b_row[part] = load(b + k * b_stride + part * LANES);
        __builtin_prefetch(ahead.at);
        ahead.at += ahead.step;
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) sums[row][part] += a[row * a_stride + k] * b_row[part];
    }
}

// Calls `tile.template run<ROWS>(first)` for ROWS = `rows`, from 1 to TILE_ROWS.
template <int ROWS, typename Tile>
INLINE void run_tile(Tile &tile, int64_t first, int64_t rows) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return run_tile<ROWS - 1>(tile, first, rows);
    }
    tile.template run<ROWS>(first);
}

// All of `rows` in as few tiles as can be, of sizes as equal as can be: a tile of one or two rows takes as long as
// one of four, as its few sums wait for one another.
template <typename Tile>
INLINE void run_tiles(Tile &tile, int64_t rows) {
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t number = 0, first = 0; number < tiles; number++) {
        const int64_t size = (rows - first) / (tiles - number);
        run_tile<TILE_ROWS>(tile, first, size);
        first += size;
    }
}
