// Rows of a table by number, and sums of rows by number. Sums are formed in row order, whichever block runs first: the rows
// are sorted by their table entry (a stable radix sort) and cut into windows of 32, and one block sums each window. An entry
// that several windows share, such as a frequent token's, leaves a partial sum in each of them, and these are added in
// order. The work is therefore balanced for any tokens, and the result does not depend on the speed of blocks.
#include <bit>

#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/element.cuh"
#include "device/cuda/launch.cuh"
#include "device/cuda/row.cuh"

namespace stretto {
namespace gpu_code {
namespace {

// ---- forward

// A warp copies a row in the widest words that all addresses allow.
template <class Word>
__global__ void __launch_bounds__(256) copy_rows(const std::int32_t* tokens, std::int64_t first, const Word* table,
                                                 std::int64_t entries, Word* y, std::int64_t rows, std::int64_t words) {
  for (std::int64_t row = first_row(); row < rows; row += row_stride()) {
    const std::int64_t entry = tokens[row] - first;
    Word* const to = y + row * words;
    if (entry >= 0 && entry < entries) {
      const Word* const from = table + entry * words;
#pragma unroll 4
      for (std::int64_t i = threadIdx.x; i < words; i += 32) to[i] = from[i];
    } else {
      for (std::int64_t i = threadIdx.x; i < words; i += 32) to[i] = Word{};
    }
  }
}

// ---- the sort

constexpr int digit_bits = 8;
constexpr unsigned digits = 1U << digit_bits;
constexpr unsigned tile = 1024;  // keys in a block, one for each thread
constexpr unsigned tile_warps = tile / 32;

struct Keys {  // the key of a row is its table entry
  std::uint32_t* entries;
  std::uint32_t* rows;
};

// Tokens whose entries belong to other ranks get the number after the last entry, and so come last.
__global__ void __launch_bounds__(256)
    make_keys(const std::int32_t* tokens, std::int64_t first, std::int64_t entries, std::uint32_t count, Keys keys) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t entry = tokens[i] - first;
  keys.entries[i] = static_cast<std::uint32_t>(entry >= 0 && entry < entries ? entry : entries);
  keys.rows[i] = i;
}

// Counts the keys with each digit in each tile: the counts of digit 0 in all tiles, then those of digit 1, and so on.
__global__ void __launch_bounds__(tile)
    count_digits(const std::uint32_t* entries, std::uint32_t count, int shift, std::uint32_t* counts) {
  __shared__ std::uint32_t of_tile[digits];
  if (threadIdx.x < digits) of_tile[threadIdx.x] = 0;
  __syncthreads();
  const std::uint32_t i = blockIdx.x * tile + threadIdx.x;
  if (i < count) atomicAdd(&of_tile[entries[i] >> shift & (digits - 1)], 1U);
  __syncthreads();
  if (threadIdx.x < digits) counts[threadIdx.x * gridDim.x + blockIdx.x] = of_tile[threadIdx.x];
}

// Replaces each count by the sum of those before it. One block; each thread takes a range of counts.
__global__ void __launch_bounds__(tile) sum_before(std::uint32_t* counts, std::uint32_t count) {
  __shared__ std::uint32_t of_warps[tile_warps];
  const std::uint32_t each = (count + tile - 1) / tile;
  const std::uint32_t begin = min(threadIdx.x * each, count);
  const std::uint32_t end = min(begin + each, count);
  std::uint32_t own = 0;
  for (std::uint32_t i = begin; i < end; ++i) own += counts[i];
  std::uint32_t up_to_own = own;
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t before = __shfl_up_sync(0xffffffffU, up_to_own, distance);
    if (threadIdx.x % 32 >= distance) up_to_own += before;
  }
  if (threadIdx.x % 32 == 31) of_warps[threadIdx.x / 32] = up_to_own;
  __syncthreads();
  std::uint32_t sum = up_to_own - own;
  for (unsigned warp = 0; warp < threadIdx.x / 32; ++warp) sum += of_warps[warp];
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t here = counts[i];
    counts[i] = sum;
    sum += here;
  }
}

// Moves each key behind the keys of lower digits and, within its digit, behind those of earlier tiles, warps and lanes.
__global__ void __launch_bounds__(tile)
    move_by_digit(const Keys from, std::uint32_t count, int shift, const std::uint32_t* before, Keys to) {
  __shared__ std::uint16_t of_warps[tile_warps][digits];
  for (unsigned i = threadIdx.x; i < tile_warps * digits; i += tile) of_warps[i / digits][i % digits] = 0;
  __syncthreads();
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t i = blockIdx.x * tile + threadIdx.x;
  const bool there = i < count;
  const std::uint32_t entry = there ? from.entries[i] : 0;
  const unsigned digit = there ? entry >> shift & (digits - 1) : digits;  // a digit that no key has
  const unsigned alike = __match_any_sync(0xffffffffU, digit);
  const unsigned place = __popc(alike & ((1U << lane) - 1));
  if (there && place == 0) of_warps[warp][digit] = static_cast<std::uint16_t>(__popc(alike));
  __syncthreads();
  if (threadIdx.x < digits) {
    std::uint32_t sum = 0;
    for (unsigned w = 0; w < tile_warps; ++w) {
      const std::uint32_t here = of_warps[w][threadIdx.x];
      of_warps[w][threadIdx.x] = static_cast<std::uint16_t>(sum);
      sum += here;
    }
  }
  __syncthreads();
  if (!there) return;
  const std::uint32_t target = before[digit * gridDim.x + blockIdx.x] + of_warps[warp][digit] + place;
  to.entries[target] = entry;
  to.rows[target] = from.rows[i];
}

// ---- sums of windows of the sorted rows

constexpr std::uint32_t window = 32;

// The first and the last entry of a window may continue in its neighbours. Their sums go to the window's two rows of
// `shared`: the sum of an entry that began before the window to the first row, of one that continues after it to the second
// (of one that does both, to the first only). The sums of all other entries are added to the table, whose elements have
// type G.
template <class T, int N, class G, class A = Accumulator<T>>
__global__ void __launch_bounds__(256) sum_windows(const Keys sorted, std::uint32_t count, std::uint32_t table_entries,
                                                   const void* dy, std::int64_t columns, Raw<G>* dtable, A* shared) {
  const std::uint32_t begin = blockIdx.x * window;
  const std::uint32_t end = min(begin + window, count);
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (c >= columns) return;
  for (std::uint32_t i = begin; i < end;) {
    const std::uint32_t entry = sorted.entries[i];
    if (entry >= table_entries) return;
    const bool from_before = i == begin && begin > 0 && sorted.entries[begin - 1] == entry;
    std::uint32_t next = i + 1;
    while (next < end && sorted.entries[next] == entry) ++next;
    A sums[N] = {};
#pragma unroll 4
    for (std::uint32_t k = i; k < next; ++k) {
      const Pack<T, N> pack = load<T, N>(dy, static_cast<std::int64_t>(sorted.rows[k]) * columns + c);
#pragma unroll
      for (int n = 0; n < N; ++n) sums[n] += widened<T>(pack.at[n]);
    }
    const bool goes_on = next == end && end < count && sorted.entries[end] == entry;
    if (from_before || goes_on) {
      A* const to = shared + (2 * static_cast<std::int64_t>(blockIdx.x) + (from_before ? 0 : 1)) * columns + c;
#pragma unroll
      for (int n = 0; n < N; ++n) to[n] = sums[n];
    } else {
      Raw<G>* const to = dtable + static_cast<std::int64_t>(entry) * columns + c;
#pragma unroll
      for (int n = 0; n < N; ++n) to[n] = rounded<G>(widened<G>(to[n]) + sums[n]);
    }
    i = next;
  }
}

// The block of the window in which a shared entry begins adds the entry's sums of this and of the following windows.
template <class G, class A = Accumulator<G>>
__global__ void __launch_bounds__(256)
    sum_shared_entries(const Keys sorted, std::uint32_t count, std::uint32_t table_entries, std::int64_t columns,
                       const A* shared, Raw<G>* dtable) {
  const std::uint32_t begin = blockIdx.x * window;
  std::uint32_t end = min(begin + window, count);
  if (end == count) return;  // nothing continues after the last window
  const std::uint32_t entry = sorted.entries[end - 1];
  if (entry >= table_entries || sorted.entries[end] != entry) return;
  // An entry that began before this window belongs to another block.
  if (begin > 0 && sorted.entries[begin] == entry && sorted.entries[begin - 1] == entry) return;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  A sum = shared[(2 * static_cast<std::int64_t>(blockIdx.x) + 1) * columns + c];
  for (std::int64_t next = blockIdx.x + 1; end < count && sorted.entries[end] == entry; ++next, end += window)
    sum += shared[2 * next * columns + c];
  Raw<G>* const to = dtable + static_cast<std::int64_t>(entry) * columns + c;
  *to = rounded<G>(widened<G>(*to) + sum);
}

}  // namespace
}  // namespace gpu_code

using namespace gpu_code;

void CudaKernels::embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y,
                                    GpuStream stream) {
  const std::int64_t rows = y.rows();
  const auto row_bytes = static_cast<std::uintptr_t>(y.columns()) * size_of(y.dtype());
  if (rows == 0 || row_bytes == 0) return;
  const std::uintptr_t all =
      row_bytes | reinterpret_cast<std::uintptr_t>(table.raw()) | reinterpret_cast<std::uintptr_t>(y.raw());
  const auto copy = [&]<class Word>(Word) {
    const dim3 block(32, 8);
    launch("take rows of a table", copy_rows<Word>, row_blocks(rows, block), block, stream, tokens.data<std::int32_t>(),
           first, static_cast<const Word*>(table.raw()), table.rows(), static_cast<Word*>(y.raw()), rows,
           static_cast<std::int64_t>(row_bytes / sizeof(Word)));
  };
  if (all % 16 == 0) return copy(uint4{});
  if (all % 8 == 0) return copy(std::uint64_t{});
  if (all % 4 == 0) return copy(std::uint32_t{});
  if (all % 2 == 0) return copy(std::uint16_t{});
  copy(std::uint8_t{});
}

void CudaKernels::embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable,
                                     GpuStream stream) {
  const std::int64_t rows = dy.rows();
  const std::int64_t columns = dy.columns();
  const std::int64_t table_entries = dtable.rows();
  if (rows == 0 || columns == 0 || table_entries == 0) return;
  require(rows <= std::int64_t{1} << 30 && table_entries < std::int64_t{1} << 31,
          "embedding_backward takes up to 2^30 rows and fewer than 2^31 table entries on a GPU, but was given {} and {}.",
          rows, table_entries);
  const auto count = static_cast<std::uint32_t>(rows);
  const auto entries = static_cast<std::uint32_t>(table_entries);
  const auto tiles = static_cast<std::uint32_t>(divided_up(count, tile));
  const auto windows = static_cast<std::uint32_t>(divided_up(count, window));

  const Scratch memory((std::size_t{4} * count + std::size_t{digits} * tiles) * sizeof(std::uint32_t), stream);
  auto* const words = memory.as<std::uint32_t>();
  Keys keys{words, words + count};
  Keys other{words + std::size_t{2} * count, words + std::size_t{3} * count};
  std::uint32_t* const counts = words + std::size_t{4} * count;
  launch("number rows", make_keys, static_cast<unsigned>(divided_up(count, 256)), 256, stream, tokens.data<std::int32_t>(),
         first, table_entries, count, keys);
  for (int shift = 0; shift < static_cast<int>(std::bit_width(entries)); shift += digit_bits) {
    launch("count digits", count_digits, tiles, tile, stream, keys.entries, count, shift, counts);
    launch("sum counts", sum_before, 1, tile, stream, counts, digits * tiles);
    launch("sort rows", move_by_digit, tiles, tile, stream, keys, count, shift, counts, other);
    std::swap(keys, other);
  }

  kernels::with_compute_type(dy.dtype(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const Scratch shared(std::size_t{2} * windows * static_cast<std::size_t>(columns) * sizeof(A), stream);
    const auto grid = [&](std::int64_t pieces, unsigned threads) {
      return dim3(windows, static_cast<unsigned>(divided_up(pieces, threads)));
    };
    const auto threads_for = [](std::int64_t pieces) {
      return static_cast<unsigned>(std::clamp<std::int64_t>(divided_up(pieces, 32) * 32, 32, 256));
    };
    kernels::with_gradient_type<T>(dtable.dtype(), [&]<class G>(G) {
      auto* const table = static_cast<Raw<G>*>(dtable.raw());
      const auto run = [&](auto packs) {
        constexpr int N = decltype(packs)::value;
        const unsigned threads = threads_for(divided_up(columns, N));
        launch("sum rows of table entries", sum_windows<T, N, G>, grid(divided_up(columns, N), threads), threads, stream,
               keys, count, entries, dy.raw(), columns, table, shared.as<A>());
      };
      constexpr int pack = 16 / sizeof(T);
      if (rows_of_packs(columns, pack, dy.raw())) {
        run(std::integral_constant<int, pack>());
      } else {
        run(std::integral_constant<int, 1>());
      }
      const unsigned threads = threads_for(columns);
      launch("sum shared table entries", sum_shared_entries<G>, grid(columns, threads), threads, stream, keys, count,
             entries, columns, shared.as<A>(), table);
    });
  });
}

}  // namespace stretto
