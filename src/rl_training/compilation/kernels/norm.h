// Layer normalisation in float32 and its gradients, for processors with AVX-512. norms.py puts this file into
// compiled graphs.
//
// Four rows are computed at a time, since a sum along one row has to wait for itself.

#ifndef RL_TRAINING_NORM
#define RL_TRAINING_NORM

#include <immintrin.h>

#include <algorithm>
#include <cmath>

namespace rl_training {

constexpr long ROWS_AT_ONCE = 4;

// Calls a function for each register of a row, with its first column and a mask of the columns that it has.
template <long columns, typename Function>
inline void for_registers(Function function) {
  constexpr long whole = columns / 16 * 16, rest = columns % 16;
#pragma GCC unroll 2
  for (long column = 0; column < whole; column += 16) function(column, __mmask16(0xffff));
  if constexpr (rest != 0) function(whole, __mmask16((1 << rest) - 1));
}

// Calls a function for the rows of some blocks of rows, with the first row and, as a type, the number of rows.
template <long rows, typename Function>
inline void for_blocks(long from, long to, Function function) {
  for (long row = from * ROWS_AT_ONCE; row < std::min(to * ROWS_AT_ONCE, rows); row += ROWS_AT_ONCE) {
    if (row + ROWS_AT_ONCE <= rows)
      function(row, std::integral_constant<long, ROWS_AT_ONCE>());
    else if constexpr (rows % ROWS_AT_ONCE != 0)
      function(row, std::integral_constant<long, rows % ROWS_AT_ONCE>());
  }
}

// The average over the columns of a row.
template <long columns>
inline __m512 average(__m512 sums) {
  return _mm512_set1_ps(_mm512_reduce_add_ps(sums) / columns);
}

// `out`: rows of mean 0 and variance 1, times weight, plus bias, and ReLU of it. Behind them are the means of all rows,
// then the inverse of all standard deviations.
template <long rows, long columns, int threads, bool has_relu>
void normalize(const float* in, long in_row, const float* weight, const float* bias, float eps, float* out, long out_row) {
  constexpr long blocks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
  const auto compute = [&](long first, auto count) {
    constexpr long height = count();
    const float* from = in + first * in_row;
    float* to = out + first * out_row;
    __m512 means[height], scales[height];
    for (long row = 0; row < height; ++row) means[row] = scales[row] = _mm512_setzero_ps();
    for_registers<columns>([&](long column, __mmask16 mask) {
#pragma GCC unroll 4
      for (long row = 0; row < height; ++row)
        means[row] = _mm512_add_ps(means[row], _mm512_maskz_loadu_ps(mask, from + row * in_row + column));
    });
    for (long row = 0; row < height; ++row) means[row] = average<columns>(means[row]);
    for_registers<columns>([&](long column, __mmask16 mask) {
#pragma GCC unroll 4
      for (long row = 0; row < height; ++row) {
        const __m512 values = _mm512_maskz_loadu_ps(mask, from + row * in_row + column);
        const __m512 differences = _mm512_maskz_sub_ps(mask, values, means[row]);
        scales[row] = _mm512_fmadd_ps(differences, differences, scales[row]);
      }
    });
    for (long row = 0; row < height; ++row) {
      const __m512 variances = _mm512_add_ps(average<columns>(scales[row]), _mm512_set1_ps(eps));
      scales[row] = _mm512_div_ps(_mm512_set1_ps(1), _mm512_sqrt_ps(variances));
      out[rows * out_row + first + row] = _mm512_cvtss_f32(means[row]);
      out[rows * (out_row + 1) + first + row] = _mm512_cvtss_f32(scales[row]);
    }
    for_registers<columns>([&](long column, __mmask16 mask) {
      const __m512 weights = _mm512_maskz_loadu_ps(mask, weight + column);
      const __m512 biases = _mm512_maskz_loadu_ps(mask, bias + column);
#pragma GCC unroll 4
      for (long row = 0; row < height; ++row) {
        const __m512 differences = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, from + row * in_row + column), means[row]);
        const __m512 values = _mm512_fmadd_ps(_mm512_mul_ps(differences, scales[row]), weights, biases);
        _mm_prefetch(from + (row + ROWS_AT_ONCE) * in_row + column, _MM_HINT_T0);  // the next block
        // Values come second, so that NaN stays NaN.
        const __m512 found = has_relu ? _mm512_max_ps(_mm512_setzero_ps(), values) : values;
        _mm512_mask_storeu_ps(to + row * out_row + column, mask, found);
      }
    });
  };
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; ++part) for_blocks<rows>(blocks * part / threads, blocks * (part + 1) / threads, compute);
}

// The gradient of `in` in the rows of `out`; the gradients of weight and bias in two more rows, if has_sums. If has_relu,
// the gradient is that of ReLU; whether it was positive is computed again, since reading it takes longer.
template <long rows, long columns, int threads, bool has_relu, bool has_sums>
void normalize_backward(const float* gradient, long gradient_row, const float* in, long in_row, const float* mean,
                        const float* scale, long statistics_row, const float* weight, const float* bias, float* out,
                        long out_row) {
  constexpr long blocks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
  alignas(64) float sums[threads][2][(columns + 15) / 16 * 16] = {};
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int part = 0; part < threads; ++part) {
    float *weight_sums = sums[part][0], *bias_sums = sums[part][1];
    const auto compute = [&](long first, auto count) {
      constexpr long height = count();
      __m512 means[height], scales[height], averages[height], slopes[height];
      for (long row = 0; row < height; ++row) {
        means[row] = _mm512_set1_ps(mean[(first + row) * statistics_row]);
        scales[row] = _mm512_set1_ps(scale[(first + row) * statistics_row]);
        averages[row] = slopes[row] = _mm512_setzero_ps();
      }
      const auto normalized = [&](long row, long column, __mmask16 mask) {
        const __m512 values = _mm512_maskz_loadu_ps(mask, in + (first + row) * in_row + column);
        return _mm512_mul_ps(_mm512_sub_ps(values, means[row]), scales[row]);
      };
      const auto gradients = [&](long row, long column, __mmask16 mask, __m512 values, __m512 weights, __m512 biases) {
        if constexpr (has_relu) {
          const __m512 outputs = _mm512_fmadd_ps(values, weights, biases);
          mask = _mm512_mask_cmp_ps_mask(mask, outputs, _mm512_setzero_ps(), _CMP_NLE_UQ);
        }
        return _mm512_maskz_loadu_ps(mask, gradient + (first + row) * gradient_row + column);
      };
      // Rows of the next block; a forward pass over other rows may have driven them out of the nearest caches.
      const auto fetch = [&](long row, long column) {
        _mm_prefetch(in + (first + row) * in_row + column, _MM_HINT_T0);
        _mm_prefetch(gradient + (first + row) * gradient_row + column, _MM_HINT_T0);
      };
      for_registers<columns>([&](long column, __mmask16 mask) {
        const __m512 weights = _mm512_maskz_loadu_ps(mask, weight + column);
        const __m512 biases = _mm512_maskz_loadu_ps(mask, bias + column);
        __m512 weight_sum = _mm512_load_ps(weight_sums + column), bias_sum = _mm512_load_ps(bias_sums + column);
#pragma GCC unroll 4
        for (long row = 0; row < height; ++row) {
          const __m512 values = normalized(row, column, mask);
          const __m512 now = gradients(row, column, mask, values, weights, biases);
          const __m512 product = _mm512_mul_ps(now, values);
          averages[row] = _mm512_fmadd_ps(now, weights, averages[row]);
          slopes[row] = _mm512_fmadd_ps(product, weights, slopes[row]);
          weight_sum = _mm512_add_ps(weight_sum, product);
          bias_sum = _mm512_add_ps(bias_sum, now);
        }
        if constexpr (has_sums) {
          _mm512_store_ps(weight_sums + column, weight_sum);
          _mm512_store_ps(bias_sums + column, bias_sum);
        }
      });
      for (long row = 0; row < height; ++row) {
        averages[row] = average<columns>(averages[row]);
        slopes[row] = average<columns>(slopes[row]);
      }
      for_registers<columns>([&](long column, __mmask16 mask) {
        const __m512 weights = _mm512_maskz_loadu_ps(mask, weight + column);
        const __m512 biases = _mm512_maskz_loadu_ps(mask, bias + column);
#pragma GCC unroll 4
        for (long row = 0; row < height; ++row) {
          fetch(row + ROWS_AT_ONCE, column);
          const __m512 values = normalized(row, column, mask);
          const __m512 now = gradients(row, column, mask, values, weights, biases);
          const __m512 rest = _mm512_fnmadd_ps(values, slopes[row], _mm512_fmsub_ps(now, weights, averages[row]));
          _mm512_mask_storeu_ps(out + (first + row) * out_row + column, mask, _mm512_mul_ps(rest, scales[row]));
        }
      });
    };
    for_blocks<rows>(blocks * part / threads, blocks * (part + 1) / threads, compute);
  }
  if constexpr (has_sums)
    for (long kind = 0; kind < 2; ++kind)
      for (long column = 0; column < columns; ++column) {
        float total = 0;
        for (int part = 0; part < threads; ++part) total += sums[part][kind][column];
        out[(rows + kind) * out_row + column] = total;
      }
}

}  // namespace rl_training

#endif
