#include "sums.hpp"

#include <cstring>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace host_limit {
namespace {

template <int places>
void add_ordinary(const Sum& sums) {
  for (std::int64_t i = 0; i < sums.count; i += line_floats) {
    float sum[line_floats];
    std::memcpy(sum, sums.inputs[0] + i, sizeof sum);
    for (int place = 1; place < places; ++place) {
      for (int lane = 0; lane < line_floats; ++lane) sum[lane] += sums.inputs[place][i + lane];
    }
    for (int place = 0; place < places; ++place) std::memcpy(sums.outputs[place] + i, sum, sizeof sum);
  }
}

#ifdef __x86_64__
template <int places>
__attribute__((target("avx512f"))) void add_ordinary_512(const Sum& sums) {
  for (std::int64_t i = 0; i < sums.count; i += line_floats) {
    __m512 sum = _mm512_loadu_ps(sums.inputs[0] + i);
    for (int place = 1; place < places; ++place) sum = _mm512_add_ps(sum, _mm512_loadu_ps(sums.inputs[place] + i));
    for (int place = 0; place < places; ++place) _mm512_storeu_ps(sums.outputs[place] + i, sum);
  }
}

template <int places>
__attribute__((target("avx512f"))) void add_around_512(const Sum& sums) {
  for (std::int64_t i = 0; i < sums.count; i += line_floats) {
    __m512 sum = _mm512_loadu_ps(sums.inputs[0] + i);
    for (int place = 1; place < places; ++place) sum = _mm512_add_ps(sum, _mm512_loadu_ps(sums.inputs[place] + i));
    for (int place = 0; place < places; ++place) _mm512_stream_ps(sums.outputs[place] + i, sum);
  }
  _mm_sfence();
}

template <int places>
void add_around(const Sum& sums) {
  for (std::int64_t i = 0; i < sums.count; i += line_floats) {
    __m128 sum[4];
    for (int part = 0; part < 4; ++part) {
      sum[part] = _mm_loadu_ps(sums.inputs[0] + i + 4 * part);
      for (int place = 1; place < places; ++place) {
        sum[part] = _mm_add_ps(sum[part], _mm_loadu_ps(sums.inputs[place] + i + 4 * part));
      }
    }
    for (int place = 0; place < places; ++place) {
      for (int part = 0; part < 4; ++part) _mm_stream_ps(sums.outputs[place] + i + 4 * part, sum[part]);
    }
  }
  _mm_sfence();
}
#endif

template <int places>
std::vector<Loop> loops_of() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {add_ordinary_512<places>, add_around_512<places>};
  return {add_ordinary<places>, add_around<places>};
#else
  return {add_ordinary<places>};
#endif
}

void copy(const Sum& sums) { std::memcpy(sums.outputs[0], sums.inputs[0], sums.count * sizeof(float)); }

}  // namespace

std::vector<Loop> loops_for(int inputs) {
  if (inputs == 1) {
    std::vector<Loop> loops = loops_of<1>();
    loops.push_back(copy);
    return loops;
  }
  if (inputs == 2) return loops_of<2>();
  if (inputs == 4) return loops_of<4>();
  return loops_of<8>();
}

}  // namespace host_limit
