// Passes over rows: the norm and the rotary embedding.

#include <cmath>

#include "lanes.h"

// Below so many floats a second thread takes longer to wake than it saves.
static const int64_t PARALLEL_FLOATS = 64 << 10;

// out = x / sqrt(mean(x^2) + eps) * weight over the last dimension, for `heads` groups of `size` floats in each row.
extern "C" void rms_norm(const float *x, int64_t rows, int64_t row_stride, int64_t heads, int64_t size,
                         const float *weight, float eps, float *out, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * heads * size > PARALLEL_FLOATS)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t head = 0; head < heads; head++) {
            const float *from = x + row * row_stride + head * size;
            float *to = out + (row * heads + head) * size;
            vec squares = {};
            int64_t i = 0;
            for (; i + LANES <= size; i += LANES) squares += load(from + i) * load(from + i);
            float total = sum(squares);
            for (; i < size; i++) total += from[i] * from[i];
            const float scale = 1.0f / std::sqrt(total / size + eps);
            for (i = 0; i + LANES <= size; i += LANES) store(to + i, load(from + i) * scale * load(weight + i));
            for (; i < size; i++) to[i] = from[i] * scale * weight[i];
        }
    }
}

// Turns the pairs (i, i + size / 2) of each head in place; cos_sin is [rows, 2, size / 2].
extern "C" void rotate(float *x, int64_t rows, int64_t row_stride, int64_t heads, int64_t size, const float *cos_sin,
                       int threads) {
    const int64_t half = size / 2;
#pragma omp parallel for num_threads(threads) if (rows * heads * size > PARALLEL_FLOATS)
    for (int64_t row = 0; row < rows; row++) {
        const float *cosine = cos_sin + row * size, *sine = cosine + half;
        for (int64_t head = 0; head < heads; head++) {
            float *first = x + row * row_stride + head * size, *second = first + half;
            for (int64_t i = 0; i < half; i++) {
                const float a = first[i], b = second[i];
                first[i] = a * cosine[i] - b * sine[i];
                second[i] = b * cosine[i] + a * sine[i];
            }
        }
    }
}
