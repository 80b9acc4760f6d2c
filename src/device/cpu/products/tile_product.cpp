#include "device/cpu/products/tile_product.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <type_traits>

#include "core/fail.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/cpu/products/product_blocks.hpp"
#include "device/cpu/products/square16.hpp"
#include "device/cpu/products/tile_registers.hpp"

namespace stretto::kernels::cpu {
#ifdef __x86_64__
namespace {

using Index = std::int64_t;
constexpr Index panel_lines = 2 * tile_rows;  // rows of a panel of a, columns of one of b
constexpr Index step = 32;                    // elements of k that one instruction sums up
constexpr BlockSizes sizes{panel_lines, panel_lines, step, 640, 4 * panel_lines, 24 * panel_lines};

// Copies up to 16 lines of up to 32 elements of k, and zeros for what is missing, to a tile: with a row for each line, as of
// a; or with a row for each pair of elements of k, as of b.
template <bool of_k, bool to_b>
STRETTO_WITH_TILES inline void copy_tile(const std::uint16_t* from, Index pitch, Index lines, Index depth, std::byte* to) {
  Square16 x;  // of 64 bytes a row
  if constexpr (of_k) {
    const auto mask = depth >= step ? ~__mmask32{0} : (__mmask32{1} << depth) - 1;
#pragma GCC unroll 16
    for (Index i = 0; i < 16; ++i)
      x.row[i] = i < lines ? _mm512_maskz_loadu_epi16(mask, from + i * pitch) : _mm512_setzero_si512();
  } else {
    const auto mask = static_cast<__mmask16>(lines >= tile_rows ? 0xffffU : (1U << lines) - 1);
    const auto line = [&](Index k) STRETTO_WITH_TILES {
      return k < depth ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + k * pitch)) : _mm512_setzero_si512();
    };
#pragma GCC unroll 16
    for (Index i = 0; i < 16; ++i) x.row[i] = _mm512_or_si512(line(2 * i), _mm512_slli_epi32(line(2 * i + 1), 16));
  }
  if constexpr (of_k == to_b) transpose(x);
#pragma GCC unroll 16
  for (Index i = 0; i < 16; ++i) _mm512_store_si512(to + 64 * i, x.row[i]);
}

// Panels follow each other; each has, for each step of k, the tile of its first 16 lines and that of the other 16.
template <bool of_k, bool to_b>
STRETTO_WITH_TILES void copy_panels(const std::uint16_t* from, const Lines& layout, const Part& lines, const Part& part,
                                    std::byte* to) {
  const Index steps = in_units(part.count, step);
  const Index tiles = in_units(lines.count, panel_lines) * 2;
  const auto copy = [&](Index tile, Index k) STRETTO_WITH_TILES {
    const Index line = tile * tile_rows;
    copy_tile<of_k, to_b>(from + layout.offset(lines.first + line, part.first + k * step), layout.pitch,
                          std::clamp<Index>(lines.count - line, 0, tile_rows), part.count - k * step,
                          to + ((tile / 2 * steps + k) * 2 + tile % 2) * tile_bytes);
  };
  // In the order of memory.
  if constexpr (of_k) {
    for (Index tile = 0; tile < tiles; ++tile) {
      for (Index k = 0; k < steps; ++k) copy(tile, k);
    }
  } else {
    for (Index k = 0; k < steps; ++k) {
      for (Index tile = 0; tile < tiles; ++tile) copy(tile, k);
    }
  }
}

template <bool to_b>
void copy_operand(const void* from, const Lines& layout, const Part& lines, const Part& part, std::byte* to) {
  const auto* const elements = static_cast<const std::uint16_t*>(from);
  if (layout.of_k) return copy_panels<true, to_b>(elements, layout, lines, part, to);
  copy_panels<false, to_b>(elements, layout, lines, part, to);
}

// The sums of a panel of a and one of b, in registers 0 to 3: [0, 1; 2, 3].
STRETTO_WITH_TILES inline void add_products(const std::byte* a, const std::byte* b, Index steps) {
  for (Index k = 0; k < steps; ++k, a += 2 * tile_bytes, b += 2 * tile_bytes) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, 64);
    _tile_loadd(7, b + tile_bytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + tile_bytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    _tile_dpbf16ps(2, 5, 6);
  }
}

STRETTO_WITH_TILES inline void store_sums(float* to, Index pitch) {
  const Index bytes = pitch * static_cast<Index>(sizeof(float));
  _tile_stored(0, to, bytes);
  _tile_stored(1, to + 16, bytes);
  _tile_stored(2, to + 16 * pitch, bytes);
  _tile_stored(3, to + 16 * pitch + 16, bytes);
}

STRETTO_WITH_TILES inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// c = or += sums, of which only the first rows and columns are c's.
STRETTO_WITH_TILES void put(const float* sums, Index rows, Index columns, float* c, Index pitch, bool accumulate) {
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < columns; j += 16) {
      const auto mask = static_cast<__mmask16>(columns - j >= 16 ? 0xffffU : (1U << (columns - j)) - 1);
      float* const to = c + i * pitch + j;
      __m512 sum = _mm512_load_ps(sums + i * panel_lines + j);
      if (accumulate) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, sum);
    }
  }
}

STRETTO_WITH_TILES void put(const float* sums, Index rows, Index columns, std::uint16_t* c, Index pitch, bool accumulate) {
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < columns; j += 16) {
      const auto mask = static_cast<__mmask16>(columns - j >= 16 ? 0xffffU : (1U << (columns - j)) - 1);
      std::uint16_t* const to = c + i * pitch + j;
      __m512 sum = _mm512_load_ps(sums + i * panel_lines + j);
      if (accumulate) {
        const __m512i before = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, to)), 16);
        sum = _mm512_add_ps(sum, _mm512_castsi512_ps(before));
      }
      _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
    }
  }
}

template <class C>
STRETTO_WITH_TILES void multiply_panels(const std::byte* a, const std::byte* b, Index steps, const Part& rows,
                                        const Part& columns, C* c, Index pitch, bool accumulate) {
  C* const to = c + rows.first * pitch + columns.first;
  for (Index i = 0; i < rows.count; ++i) {  // they are far apart: the processor does not fetch them ahead by itself
    for (Index j = 0; j < columns.count; j += 64 / static_cast<Index>(sizeof(C))) __builtin_prefetch(to + i * pitch + j, 1);
  }
  zero_sums();
  tiles_meet_memory();
  add_products(a, b, steps);
  if constexpr (std::is_same_v<C, float>) {
    if (!accumulate && rows.count == panel_lines && columns.count == panel_lines) {
      store_sums(to, pitch);
      return tiles_meet_memory();
    }
  }
  alignas(64) float sums[panel_lines * panel_lines];
  store_sums(sums, panel_lines);
  tiles_meet_memory();
  put(sums, rows.count, columns.count, to, pitch, accumulate);
}

template <class C>
STRETTO_WITH_TILES void multiply(const Product& p, const Share& share, const void* a, const void* b, C* c) {
  thread_local PanelMemory memory;
  const Index panel_bytes = sizes.most_depth / step * 2 * tile_bytes;
  std::byte* const of_a = memory.of(static_cast<std::size_t>(
      panel_bytes *
      (sizes.block_rows + std::min(sizes.block_columns, in_units(share.columns.count, panel_lines) * panel_lines)) /
      panel_lines));
  std::byte* const of_b = of_a + panel_bytes * sizes.block_rows / panel_lines;
  begin_tiles();
  for_each_block(
      sizes, share, p.k,
      [&](const Part& rows, const Part& part) { copy_operand<false>(a, lines_of_a(p), rows, part, of_a); },
      [&](const Part& columns, const Part& part) { copy_operand<true>(b, lines_of_b(p), columns, part, of_b); },
      [&](const Part& rows, const Part& columns, const Part& part, Index panel_a, Index panel_b) {
        const Index steps = in_units(part.count, step);
        multiply_panels(of_a + panel_a * steps * 2 * tile_bytes, of_b + panel_b * steps * 2 * tile_bytes, steps, rows,
                        columns, c, p.n, p.accumulate || part.first > 0);
      });
  end_tiles();
}

// The system gives tile registers only to a process that asks.
bool may_use_tiles() {
  constexpr int request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int tile_data = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

template <class C>
void multiply_in_threads(const Product& p, const void* a, const void* b, C* c, int threads) {
  in_threads(threads, sizes, p, [&](const Share& share) { multiply(p, share, a, b, c); });
}

}  // namespace

bool processor_has_tiles() {
  static const bool yes = processor_multiplies_bf16() && has_tile_instructions() && may_use_tiles();
  return yes;
}

void tile_product(const Product& p, const void* a, const void* b, DType dtype_c, void* c, int threads) {
  if (dtype_c == DType::f32) return multiply_in_threads(p, a, b, static_cast<float*>(c), threads);
  if (p.k <= sizes.most_depth) return multiply_in_threads(p, a, b, static_cast<std::uint16_t*>(c), threads);
  const MemoryScope scratch(MemoryKind::other);
  const Tensor sum({p.m, p.n}, DType::f32, Device::cpu);
  if (p.accumulate) convert(dtype_c, c, DType::f32, sum.raw(), sum.size());
  multiply_in_threads(p, a, b, sum.data<float>(), threads);
  convert(DType::f32, sum.raw(), dtype_c, c, sum.size());
}
#else
bool processor_has_tiles() { return false; }

void tile_product(const Product& /*product*/, const void* /*a*/, const void* /*b*/, DType /*dtype_c*/, void* /*c*/,
                  int /*threads*/) {
  fail(ErrorCode::internal, "This processor has no tile registers.");
}
#endif

}  // namespace stretto::kernels::cpu
