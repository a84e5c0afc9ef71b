// Matrix products with weights that were laid out in panels, and what follows them while the sums are in registers.
//
// A weight [out, in] lies as [out / PANEL, in, PANEL]: each panel is read from beginning to end, once for every tile
// of rows. Libraries take their rate for large matrices from blocks that a step of 64 rows does not fill.

#include "lanes.h"

#define PARTS 2
#define PANEL (PARTS * LANES)

// Floats of the input that are multiplied with one panel before the next: they stay in the second-level cache.
static const int64_t INPUT_FLOATS = 64 << 10;
// Pieces of work per thread, so that one that is held up does not keep the others waiting.
static const int64_t TASKS_PER_THREAD = 16;

struct Linear {
    const float *input;     // [rows, depth]
    const float *panels;    // [ceil(columns / width), depth, PANEL]
    const float *bias;      // [columns] or null
    const float *residual;  // [rows, columns] or null
    float *out;             // [rows, columns]
    int64_t rows, depth, columns;
};

INLINE void add(float *to, const float *what, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += what[i];
}

// Some rows times one panel. A gated panel holds LANES columns of the gate and as many of what it gates.
template <bool GATED>
struct Tile {
    static const int WIDTH = GATED ? LANES : PANEL;

    const Linear &job;
    const float *input, *panel;
    int64_t first_row, column;
    Ahead ahead;

    template <int ROWS>
    INLINE void finish(const vec (&sums)[ROWS][PARTS], int64_t row) {
        const int64_t width = smaller(WIDTH, job.columns - column);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const int64_t at = (first_row + row + r) * job.columns + column;
            vec result[PARTS] = {sums[r][0], sums[r][1]};
            if (GATED) result[0] = result[0] / (1.0f + exponential(-result[0])) * result[1];
            if (width == WIDTH) {
                for (int part = 0; part < WIDTH / LANES; part++) {
                    if (job.bias) result[part] += load(job.bias + column + part * LANES);
                    if (job.residual) result[part] += load(job.residual + at + part * LANES);
                    store(job.out + at + part * LANES, result[part]);
                }
            } else {
                float values[PANEL];
                std::memcpy(values, result, sizeof values);
                if (job.bias) add(values, job.bias + column, width);
                if (job.residual) add(values, job.residual + at, width);
                std::memcpy(job.out + at, values, width * sizeof(float));
            }
        }
    }

    template <int ROWS>
    ALONE void run(int64_t row) {
        vec sums[ROWS][PARTS] = {};
        multiply<ROWS, PARTS>(input + row * job.depth, job.depth, panel, PANEL, job.depth, sums, ahead);
        ahead.at += ahead.step * job.depth;
        finish<ROWS>(sums, row);
    }
};

template <bool GATED>
static void multiply_panels(const Linear &job, int threads) {
    if (job.rows == 0) return;
    const int64_t panels = (job.columns + Tile<GATED>::WIDTH - 1) / Tile<GATED>::WIDTH;
    const int64_t most_rows = larger(INPUT_FLOATS / job.depth / TILE_ROWS, 1) * TILE_ROWS;
    const int64_t row_tiles = (job.rows + most_rows - 1) / most_rows;
    const int64_t tile_rows = (job.rows + row_tiles - 1) / row_tiles;
    const int64_t wanted_groups = (threads * TASKS_PER_THREAD + row_tiles - 1) / row_tiles;
    const int64_t group = (panels + wanted_groups - 1) / wanted_groups;
    const int64_t groups = (panels + group - 1) / group;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < row_tiles * groups; task++) {
        const int64_t first = task / groups * tile_rows, last = smaller(job.rows, first + tile_rows);
        if (first >= last) continue;
        const int64_t first_panel = task % groups * group, last_panel = smaller(panels, first_panel + group);
        // While a panel is used the next one is fetched, evenly over the tiles of rows.
        const int64_t uses = (last - first + TILE_ROWS - 1) / TILE_ROWS;
        const int64_t step = larger(PANEL * sizeof(float) / uses, 1);
        for (int64_t p = first_panel; p < last_panel; p++) {
            const float *panel = job.panels + p * job.depth * PANEL;
            const Ahead ahead = {(const char *)(panel + job.depth * PANEL), step};
            Tile<GATED> tile{job, job.input + first * job.depth, panel, first, p * Tile<GATED>::WIDTH, ahead};
            run_tiles(tile, last - first);
        }
    }
}

extern "C" int lanes() { return LANES; }

// out = input times the weight, plus bias, plus residual.
extern "C" void linear(const float *input, int64_t rows, int64_t depth, const float *panels, int64_t columns,
                       const float *bias, const float *residual, float *out, int threads) {
    multiply_panels<false>({input, panels, bias, residual, out, rows, depth, columns}, threads);
}

// out = silu(input times the gate) * (input times what it gates); `columns` counts those of the result.
extern "C" void linear_gated(const float *input, int64_t rows, int64_t depth, const float *panels, int64_t columns,
                             float *out, int threads) {
    multiply_panels<true>({input, panels, nullptr, nullptr, out, rows, depth, columns}, threads);
}
