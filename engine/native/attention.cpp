// Attention that reads keys and values where they lie.
//
// A block's keys are [kv_heads, block_size / TOKENS, head_dim, TOKENS], so that products with a query are panels like
// a weight's; its values are [kv_heads, block_size, head_dim]. A task is one KV head with the query heads that share
// it, for one decode or some rows of a chunk. It has all scores before the softmax, which therefore is exact and the
// same however a sequence was cut into chunks.

#include <cmath>
#include <limits>
#include <vector>

#include "lanes.h"

#define TOKENS 16
#define PARTS (TOKENS / LANES)
static_assert(PARTS >= 1, "a register holds at most TOKENS floats");

struct Attention {
    const float *query;  // [rows, heads, head_dim], rows `query_stride` apart
    const float *key_pages, *value_pages;
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
struct Task {
    const Attention &job;
    const int64_t *table;
    int64_t kv_head, position, rows, first;
    int64_t group, vectors;     // query heads per KV head; rows * group
    int64_t begin, end, width;  // tokens from a multiple of TOKENS on; floats between two rows of scores
    Scratch &scratch;

    INLINE int64_t seen_from(int64_t row) const {
        return job.window ? larger(position + row - job.window + 1, 0) : 0;
    }
    INLINE int64_t seen_until(int64_t row) const { return position + row + 1; }
    INLINE const float *page(const float *pages, int64_t token) const {
        const int64_t block = table[smaller(token, end - 1) / job.block_size];
        return pages + (block * job.kv_heads + kv_head) * job.block_size * job.head_dim;
    }
    INLINE const float *key_panel(int64_t token) const {
        return page(job.key_pages, token) + token % job.block_size / TOKENS * TOKENS * job.head_dim;
    }

    void run();
    void read_queries();
    void softmax(int64_t vector);
    void write();
};

// Query vectors times one panel of keys.
struct ScoreTile {
    const Task &task;
    int64_t token;
    const float *panel;
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
struct ValueTile {
    const Task &task;
    int64_t token, count, column;
    const float *values;
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

void Task::read_queries() {
    const float scale = 1.0f / std::sqrt((float)job.head_dim);
    const int64_t count = group * job.head_dim;
    scratch.query.resize(rows * count);
    for (int64_t row = 0; row < rows; row++) {
        const float *from = job.query + (first + row) * job.query_stride + kv_head * count;
        float *to = scratch.query.data() + row * count;
        for (int64_t i = 0; i < count; i++) to[i] = from[i] * scale;
    }
}

void Task::softmax(int64_t vector) {
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

void Task::write() {
    const int64_t dim = job.head_dim;
    for (int64_t vector = 0; vector < vectors; vector++) {
        const int64_t row = first + vector / group, head = kv_head * group + vector % group;
        const float *from = scratch.sums.data() + vector * dim;
        float *to = job.out + (row * job.heads + head) * dim;
        for (int64_t i = 0; i < dim; i++) to[i] = from[i] * scratch.scales[vector];
    }
}

void Task::run() {
    const int64_t dim = job.head_dim, tiles = (vectors + TILE_ROWS - 1) / TILE_ROWS;
    read_queries();
    scratch.scores.resize(vectors * width);
    scratch.scales.resize(vectors);
    const int64_t step = larger(TOKENS * sizeof(float) / tiles, 1);
    for (int64_t token = begin; token < end; token += TOKENS) {
        ScoreTile tile{*this, token, key_panel(token), {(const char *)key_panel(token + TOKENS), step}};
        run_tiles(tile, vectors);
    }
    for (int64_t vector = 0; vector < vectors; vector++) softmax(vector);
    scratch.sums.assign(vectors * dim, 0.0f);
    for (int64_t token = begin; token < end;) {
        const int64_t offset = token % job.block_size, count = smaller(job.block_size - offset, end - token);
        const float *values = page(job.value_pages, token) + offset * dim;
        const char *next = (const char *)page(job.value_pages, token + count);
        for (int64_t column = 0; column < dim; column += TOKENS) {
            ValueTile tile{*this, token, count, column, values, {next, step}};
            run_tiles(tile, vectors);
            next += step * count * tiles;
        }
        token += count;
    }
    write();
}

// Attends `tasks` pieces of work, each (request, first row, rows, position of the first row), once per KV head.
extern "C" void attend(const float *query, int64_t query_stride, const float *key_pages, const float *value_pages,
                       float *out, const int64_t *tables, int64_t table_stride, const int64_t *pieces,
                       int64_t num_pieces, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                       int64_t window, int threads) {
    const Attention job = {query,        key_pages, value_pages, out,      tables,     query_stride,
                           table_stride, heads,     kv_heads,    head_dim, block_size, window};
#pragma omp parallel num_threads(threads)
    {
        static thread_local Scratch scratch;
#pragma omp for schedule(dynamic)
        for (int64_t number = 0; number < num_pieces * kv_heads; number++) {
            const int64_t *piece = pieces + number / kv_heads * 4;
            const int64_t position = piece[3], end = position + piece[2], group = heads / kv_heads;
            const int64_t seen = window ? larger(position - window + 1, 0) : 0, begin = seen / TOKENS * TOKENS;
            const int64_t width = (end - begin + TOKENS - 1) / TOKENS * TOKENS;
            Task task{job,   tables + piece[0] * table_stride, number % kv_heads, position, piece[2], piece[1],
                      group, piece[2] * group,                 begin,             end,      width,    scratch};
            task.run();
        }
    }
}

// Puts keys and values [tokens, kv_heads, head_dim] into their slots, `block * block_size + offset`.
extern "C" void write_pages(const float *key, int64_t key_stride, const float *value, int64_t value_stride,
                            float *key_pages, float *value_pages, const int64_t *slots, int64_t tokens,
                            int64_t kv_heads, int64_t head_dim, int64_t block_size, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t token = 0; token < tokens; token++) {
        const int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
        for (int64_t head = 0; head < kv_heads; head++) {
            const int64_t page = (block * kv_heads + head) * block_size * head_dim;
            const float *key_from = key + token * key_stride + head * head_dim;
            float *key_to = key_pages + page + offset / TOKENS * TOKENS * head_dim + offset % TOKENS;
            for (int64_t i = 0; i < head_dim; i++) key_to[i * TOKENS] = key_from[i];
            std::memcpy(value_pages + page + offset * head_dim, value + token * value_stride + head * head_dim,
                        head_dim * sizeof(float));
        }
    }
}
