// Attention that reads keys and values where they lie.
//
// A block's keys are [kv_heads, block_size / TOKENS, head_dim, TOKENS], so that products with a query are panels like
// a weight's; its values are [kv_heads, block_size, head_dim]. A task is one KV head with the query heads that share
// it, for one decode or some rows of a chunk. It has all scores before the softmax, which therefore is exact and the
// same however a sequence was cut into chunks.
//
// Page is the type of the numbers in a page: float, Half or Brain. Queries, sums and the result are float.

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "lanes.h"

#define TOKENS 16
#define PARTS (TOKENS / LANES)
static_assert(PARTS >= 1, "a register holds at most TOKENS floats");

template <typename Page>
struct Attention {
    const float *query;  // [rows, heads, head_dim], rows `query_stride` apart
    const Page *key_pages, *value_pages;
    float *out;             // [rows, heads, head_dim]
    const int64_t *tables;  // [requests, table_stride]
    int64_t query_stride, table_stride;
    int64_t heads, kv_heads, head_dim, block_size;
    int64_t window;  // 0 for none
};

// What one thread works in.
struct Scratch {
    std::vector<float> query, scores, sums, scales;
};

// One KV head, and the rows `first .. first + rows` of one request, the first of them at `position`.
template <typename Page>
struct Task {
    const Attention<Page> &job;
    const int64_t *table;
    int64_t kv_head, position, rows, first;
    int64_t group, vectors;     // query heads per KV head; rows * group
    int64_t begin, end, width;  // tokens from a multiple of TOKENS on; floats between two rows of scores
    Scratch &scratch;

    INLINE int64_t seen_from(int64_t row) const {
        return job.window ? larger(position + row - job.window + 1, 0) : 0;
    }
    INLINE int64_t seen_until(int64_t row) const { return position + row + 1; }
    INLINE const Page *page(const Page *pages, int64_t token) const {
        const int64_t block = table[smaller(token, end - 1) / job.block_size];
        return pages + (block * job.kv_heads + kv_head) * job.block_size * job.head_dim;
    }
    INLINE const Page *key_panel(int64_t token) const {
        return page(job.key_pages, token) + token % job.block_size / TOKENS * TOKENS * job.head_dim;
    }

    void run();
    void read_queries();
    void softmax(int64_t vector);
    void write();
};

// Query vectors times one panel of keys.
template <typename Page>
struct ScoreTile {
    const Task<Page> &task;
    int64_t token;
    const Page *panel;
    Ahead ahead;

    template <int ROWS>
    ALONE void run(int64_t vector) {
        if (task.seen_until((vector + ROWS - 1) / task.group) <= token) return;
        const int64_t dim = task.job.head_dim;
        vec sums[ROWS][PARTS] = {};
        multiply<ROWS, PARTS>(task.scratch.query.data() + vector * dim, dim, panel, TOKENS, dim, sums, ahead);
        ahead.at += ahead.step * dim;
        float *scores = task.scratch.scores.data() + vector * task.width + token - task.begin;
        for (int r = 0; r < ROWS; r++)
            for (int part = 0; part < PARTS; part++) store(scores + r * task.width + part * LANES, sums[r][part]);
    }
};

// Probabilities times TOKENS columns of one block's values.
template <typename Page>
struct ValueTile {
    const Task<Page> &task;
    int64_t token, count, column;
    const Page *values;
    Ahead ahead;

    template <int ROWS>
    ALONE void run(int64_t vector) {
        const int64_t dim = task.job.head_dim;
        // Only tokens that some of these rows see: what lies behind them may not have been written.
        const int64_t seen = smaller(count, task.seen_until((vector + ROWS - 1) / task.group) - token);
        float *sums_at = task.scratch.sums.data() + vector * dim + column;
        vec sums[ROWS][PARTS];
        for (int r = 0; r < ROWS; r++)
            for (int part = 0; part < PARTS; part++) sums[r][part] = load(sums_at + r * dim + part * LANES);
        const float *weights = task.scratch.scores.data() + vector * task.width + token - task.begin;
        multiply<ROWS, PARTS>(weights, task.width, values + column, dim, seen, sums, ahead);
        ahead.at += ahead.step * count;
        for (int r = 0; r < ROWS; r++)
            for (int part = 0; part < PARTS; part++) store(sums_at + r * dim + part * LANES, sums[r][part]);
    }
};

template <typename Page>
void Task<Page>::read_queries() {
    const float scale = 1.0f / std::sqrt((float)job.head_dim);
    const int64_t count = group * job.head_dim;
    scratch.query.resize(rows * count);
    for (int64_t row = 0; row < rows; row++) {
        const float *from = job.query + (first + row) * job.query_stride + kv_head * count;
        float *to = scratch.query.data() + row * count;
        for (int64_t i = 0; i < count; i++) to[i] = from[i] * scale;
    }
}

template <typename Page>
void Task<Page>::softmax(int64_t vector) {
    const int64_t row = vector / group;
    float *scores = scratch.scores.data() + vector * width;
    const int64_t from = seen_from(row) - begin, until = seen_until(row) - begin;
    const int64_t padded = (until + TOKENS - 1) / TOKENS * TOKENS;
    const float never = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < from; i++) scores[i] = never;
    for (int64_t i = until; i < padded; i++) scores[i] = never;
    vec best = all(never);
    for (int64_t i = 0; i < padded; i += LANES) {
        const vec score = load(scores + i);
        best = score > best ? score : best;
    }
    const float highest = largest(best);
    vec total = {};
    for (int64_t i = 0; i < padded; i += LANES) {
        const vec weight = exponential(load(scores + i) - highest);
        total += weight;
        store(scores + i, weight);
    }
    // Rows of the same tile may see further.
    for (int64_t i = padded; i < width; i++) scores[i] = 0;
    scratch.scales[vector] = 1.0f / sum(total);
}

template <typename Page>
void Task<Page>::write() {
    const int64_t dim = job.head_dim;
    for (int64_t vector = 0; vector < vectors; vector++) {
        const int64_t row = first + vector / group, head = kv_head * group + vector % group;
        const float *from = scratch.sums.data() + vector * dim;
        float *to = job.out + (row * job.heads + head) * dim;
        for (int64_t i = 0; i < dim; i++) to[i] = from[i] * scratch.scales[vector];
    }
}

template <typename Page>
void Task<Page>::run() {
    const int64_t dim = job.head_dim, tiles = (vectors + TILE_ROWS - 1) / TILE_ROWS;
    read_queries();
    scratch.scores.resize(vectors * width);
    scratch.scales.resize(vectors);
    const int64_t step = larger(TOKENS * sizeof(Page) / tiles, 1);
    for (int64_t token = begin; token < end; token += TOKENS) {
        ScoreTile<Page> tile{*this, token, key_panel(token), {(const char *)key_panel(token + TOKENS), step}};
        run_tiles(tile, vectors);
    }
    for (int64_t vector = 0; vector < vectors; vector++) softmax(vector);
    scratch.sums.assign(vectors * dim, 0.0f);
    for (int64_t token = begin; token < end;) {
        const int64_t offset = token % job.block_size, count = smaller(job.block_size - offset, end - token);
        const Page *values = page(job.value_pages, token) + offset * dim;
        const char *next = (const char *)page(job.value_pages, token + count);
        for (int64_t column = 0; column < dim; column += TOKENS) {
            ValueTile<Page> tile{*this, token, count, column, values, {next, step}};
            run_tiles(tile, vectors);
            next += step * count * tiles;
        }
        token += count;
    }
    write();
}

template <typename Page>
static void attend_pieces(const Attention<Page> &job, const int64_t *pieces, int64_t num_pieces, int threads) {
    const int64_t kv_heads = job.kv_heads, group = job.heads / kv_heads;
#pragma omp parallel num_threads(threads)
    {
        static thread_local Scratch scratch;
#pragma omp for schedule(dynamic)
        for (int64_t number = 0; number < num_pieces * kv_heads; number++) {
            const int64_t *piece = pieces + number / kv_heads * 4;
            const int64_t position = piece[3], end = position + piece[2];
            const int64_t seen = job.window ? larger(position - job.window + 1, 0) : 0, begin = seen / TOKENS * TOKENS;
            const int64_t width = (end - begin + TOKENS - 1) / TOKENS * TOKENS;
            const int64_t *table = job.tables + piece[0] * job.table_stride;
            Task<Page> task{job,   table,            number % kv_heads, position, piece[2], piece[1],
                            group, piece[2] * group, begin,             end,      width,    scratch};
            task.run();
        }
    }
}

template <typename Page>
static void write_tokens(const float *key, int64_t key_stride, const float *value, int64_t value_stride,
                         Page *key_pages, Page *value_pages, const int64_t *slots, int64_t tokens, int64_t kv_heads,
                         int64_t head_dim, int64_t block_size, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t token = 0; token < tokens; token++) {
        const int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
        for (int64_t head = 0; head < kv_heads; head++) {
            const int64_t page = (block * kv_heads + head) * block_size * head_dim;
            const float *key_from = key + token * key_stride + head * head_dim;
            const float *value_from = value + token * value_stride + head * head_dim;
            Page *key_to = key_pages + page + offset / TOKENS * TOKENS * head_dim + offset % TOKENS;
            Page *value_to = value_pages + page + offset * head_dim;
            for (int64_t i = 0; i < head_dim; i += LANES) {
                Page piece[LANES];
                store(piece, load(key_from + i));
                for (int lane = 0; lane < LANES; lane++) key_to[(i + lane) * TOKENS] = piece[lane];
                store(value_to + i, load(value_from + i));
            }
        }
    }
}

// Calls `work` with a null pointer to the type of a page's numbers: 0 float, 1 Half, 2 Brain.
template <typename Work>
static void with_page_type(int numbers, Work work) {
    if (numbers == 0) return work((float *)nullptr);
    if (numbers == 1) return work((Half *)nullptr);
    work((Brain *)nullptr);
}

// Attends `num_pieces` pieces of work, each (request, first row, rows, position of the first row), per KV head.
extern "C" void attend(const float *query, int64_t query_stride, const void *key_pages, const void *value_pages,
                       int numbers, float *out, const int64_t *tables, int64_t table_stride, const int64_t *pieces,
                       int64_t num_pieces, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                       int64_t window, int threads) {
    with_page_type(numbers, [&](auto *type) {
        using Page = std::remove_pointer_t<decltype(type)>;
        const Attention<Page> job = {query,        (const Page *)key_pages, (const Page *)value_pages, out,
                                     tables,       query_stride,            table_stride,              heads,
                                     kv_heads,     head_dim,                block_size,                window};
        attend_pieces(job, pieces, num_pieces, threads);
    });
}

// Puts keys and values [tokens, kv_heads, head_dim] into their slots, `block * block_size + offset`.
extern "C" void write_pages(const float *key, int64_t key_stride, const float *value, int64_t value_stride,
                            void *key_pages, void *value_pages, int numbers, const int64_t *slots, int64_t tokens,
                            int64_t kv_heads, int64_t head_dim, int64_t block_size, int threads) {
    with_page_type(numbers, [&](auto *type) {
        using Page = std::remove_pointer_t<decltype(type)>;
        write_tokens(key, key_stride, value, value_stride, (Page *)key_pages, (Page *)value_pages, slots, tokens,
                     kv_heads, head_dim, block_size, threads);
    });
}
