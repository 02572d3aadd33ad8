// Matrix products in float32, for processors with AVX-512. product_operators.py puts this file into compiled graphs.
//
// A tile of the result stays in registers while products along the depth are added to it. The right factor is read row
// by row, so its rows must be contiguous: transposed weights are copied first. The left one may be laid out in any way.

#ifndef RL_TRAINING_PRODUCT
#define RL_TRAINING_PRODUCT

#include <immintrin.h>

#include <algorithm>

namespace rl_training {

constexpr long FLOATS = 16;  // in a register
constexpr long BLOCK_DEPTH = 256;

inline __mmask16 first(long count) { return count >= FLOATS ? 0xffff : (1 << count) - 1; }

// 16 rows of 16 numbers as columns.
inline void turn(__m512 (&rows)[16]) {
  __m512 pairs[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  const auto low = [&](int i, int j) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[j])));
  };
  const auto high = [&](int i, int j) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[j])));
  };
  __m512 fours[16];  // of number 4 * i + j, each quarter has one column of the rows from 4 * i on
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = low(i, i + 2);
    fours[i + 1] = high(i, i + 2);
    fours[i + 2] = low(i + 1, i + 3);
    fours[i + 3] = high(i + 1, i + 3);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 even_upper = _mm512_shuffle_f32x4(fours[i], fours[4 + i], 0x88);
    const __m512 odd_upper = _mm512_shuffle_f32x4(fours[i], fours[4 + i], 0xdd);
    const __m512 even_lower = _mm512_shuffle_f32x4(fours[8 + i], fours[12 + i], 0x88);
    const __m512 odd_lower = _mm512_shuffle_f32x4(fours[8 + i], fours[12 + i], 0xdd);
    rows[i] = _mm512_shuffle_f32x4(even_upper, even_lower, 0x88);
    rows[4 + i] = _mm512_shuffle_f32x4(odd_upper, odd_lower, 0x88);
    rows[8 + i] = _mm512_shuffle_f32x4(even_upper, even_lower, 0xdd);
    rows[12 + i] = _mm512_shuffle_f32x4(odd_upper, odd_lower, 0xdd);
  }
}

// out, with rows in one piece, = the transpose of a matrix.
template <long rows, long columns, int threads>
void transpose(const float* matrix, long matrix_row, float* out) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (long row = 0; row < rows; row += FLOATS) {
    for (long column = 0; column < columns; column += FLOATS) {
      __m512 block[16];
#pragma GCC unroll 16
      for (long i = 0; i < FLOATS; ++i)
        block[i] = row + i < rows ? _mm512_maskz_loadu_ps(first(columns - column), matrix + (row + i) * matrix_row + column)
                                  : _mm512_setzero_ps();
      turn(block);
#pragma GCC unroll 16
      for (long i = 0; i < FLOATS; ++i)
        if (column + i < columns) _mm512_mask_storeu_ps(out + (column + i) * rows + row, first(rows - row), block[i]);
    }
  }
}

// out = left * right + start, for `rows` rows and at most `vectors` registers of columns. The distances between
// neighbours in a column are `*_row`, those of the left factor in a row `left_column`. `start` may be null, or `out`.
template <long rows, long vectors>
void tile(const float* left, long left_row, long left_column, const float* right, long right_row, const float* start,
          long start_row, float* out, long out_row, long depth, long columns, bool has_relu) {
  const __mmask16 mask = first(columns - (vectors - 1) * FLOATS);
  const auto load = [&](const float* from, long vector) {
    return _mm512_maskz_loadu_ps(vector == vectors - 1 ? mask : 0xffff, from + vector * FLOATS);
  };
  const bool has_contiguous_rows = left_column == 1 && depth > 4 * FLOATS;
  __m512 sums[rows][vectors];
#pragma GCC unroll 8
  for (long row = 0; row < rows; ++row)
#pragma GCC unroll 4
    for (long vector = 0; vector < vectors; ++vector)
      sums[row][vector] = start ? load(start + row * start_row, vector) : _mm512_setzero_ps();
  for (long step = 0; step < depth; ++step) {
    if (has_contiguous_rows && step % FLOATS == 0) {  // fetch the rows of the next tile
#pragma GCC unroll 8
      for (long row = rows; row < 2 * rows; ++row) _mm_prefetch(left + row * left_row + step, _MM_HINT_T0);
    }
    __m512 values[vectors];
#pragma GCC unroll 4
    for (long vector = 0; vector < vectors; ++vector) values[vector] = load(right + step * right_row, vector);
#pragma GCC unroll 8
    for (long row = 0; row < rows; ++row) {
      const __m512 weight = _mm512_set1_ps(left[row * left_row + step * left_column]);
#pragma GCC unroll 4
      for (long vector = 0; vector < vectors; ++vector)
        sums[row][vector] = _mm512_fmadd_ps(weight, values[vector], sums[row][vector]);
    }
  }
#pragma GCC unroll 8
  for (long row = 0; row < rows; ++row)
#pragma GCC unroll 4
    for (long vector = 0; vector < vectors; ++vector) {
      // The sum comes second, so that NaN stays NaN.
      const __m512 sum = has_relu ? _mm512_max_ps(_mm512_setzero_ps(), sums[row][vector]) : sums[row][vector];
      _mm512_mask_storeu_ps(out + row * out_row + vector * FLOATS, vector == vectors - 1 ? mask : 0xffff, sum);
    }
}

// out = left * right + bias, and ReLU of it. The bias may be null; with bias_row = 0, all rows have the same.
template <long rows, long columns, long depth, int threads, long left_row, long left_column>
void product(const float* left, const float* right, long right_row, const float* bias, long bias_row, float* out,
             long out_row, bool has_relu) {
  // Tiles of 4 registers by 5 rows are faster for rows in one piece, those of 2 by 8 for transposed ones.
  constexpr long tile_rows = left_column == 1 ? 5 : 8, tile_vectors = left_column == 1 ? 4 : 2;
  constexpr long tile_columns = tile_vectors * FLOATS, rest = columns % tile_columns;
  constexpr long block_rows = 16 * tile_rows;
  constexpr long tiles = (rows + tile_rows - 1) / tile_rows, tiles_across = (columns + tile_columns - 1) / tile_columns;
  // Threads share rows, so that each finds its own in its cache when the next layer reads them; and columns where there
  // are too few rows to share.
  constexpr long parts_down = std::clamp(tiles / 4, 1L, long(threads)), parts_across = threads / parts_down;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (long part = 0; part < parts_down * parts_across; ++part) {
    const long down = part / parts_across, across = part % parts_across;
    const long first_row = tiles * down / parts_down * tile_rows;
    const long end_row = std::min(tiles * (down + 1) / parts_down * tile_rows, rows);
    const long first_column = tiles_across * across / parts_across * tile_columns;
    const long end_column = std::min(tiles_across * (across + 1) / parts_across * tile_columns, columns);
    for (long from = 0; from < depth; from += BLOCK_DEPTH) {
      const long length = std::min(BLOCK_DEPTH, depth - from);
      const float* start = from == 0 ? bias : out;
      const long start_row = from == 0 ? bias_row : out_row;
      const bool has_relu_now = has_relu && from + length == depth;
      for (long block = first_row; block < end_row; block += block_rows) {
        const long end = std::min(block + block_rows, end_row);
        for (long column = first_column; column < end_column; column += tile_columns) {
          const auto compute = [&](auto height, auto vectors, long row) {
            tile<height(), vectors()>(left + row * left_row + from * left_column, left_row, left_column,
                                      right + from * right_row + column, right_row,
                                      start ? start + row * start_row + column : nullptr, start_row,
                                      out + row * out_row + column, out_row, length, columns - column, has_relu_now);
          };
          const auto compute_rows = [&](auto vectors) {
            long row = block;
            for (; row + tile_rows <= end; row += tile_rows)
              compute(std::integral_constant<long, tile_rows>(), vectors, row);
            if constexpr (rows % tile_rows != 0)
              if (row < end) compute(std::integral_constant<long, rows % tile_rows>(), vectors, row);
          };
          if (columns - column >= tile_columns)
            compute_rows(std::integral_constant<long, tile_vectors>());
          else if constexpr (rest != 0)
            compute_rows(std::integral_constant<long, (rest + FLOATS - 1) / FLOATS>());
        }
      }
    }
  }
}

// out = the sum of the rows of a matrix.
template <long rows, long columns>
void sum_rows(const float* matrix, long matrix_row, float* out) {
  constexpr long vectors = 8;
  for (long from = 0; from < columns; from += vectors * FLOATS) {
    __m512 sums[vectors];
    __mmask16 masks[vectors];
    for (long vector = 0; vector < vectors; ++vector) {
      sums[vector] = _mm512_setzero_ps();
      masks[vector] = first(std::max(columns - from - vector * FLOATS, 0L));
    }
    for (long row = 0; row < rows; ++row)
#pragma GCC unroll 8
      for (long vector = 0; vector < vectors; ++vector) {
        const float* numbers = matrix + row * matrix_row + from + vector * FLOATS;
        sums[vector] = _mm512_add_ps(sums[vector], _mm512_maskz_loadu_ps(masks[vector], numbers));
      }
    for (long vector = 0; vector < vectors; ++vector)
      _mm512_mask_storeu_ps(out + from + vector * FLOATS, masks[vector], sums[vector]);
  }
}

}  // namespace rl_training

#endif
