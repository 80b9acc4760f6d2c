#pragma once
#ifdef __x86_64__
#include <immintrin.h>

#include <atomic>
#include <cstdint>

// The tile registers of AMX: 8 matrices of 16 rows of 64 bytes each. What one instruction multiplies are 16 rows of 32 bf16
// by 16 pairs of rows of 16 bf16; sums are 16 x 16 f32.
namespace stretto::kernels::cpu {

#define STRETTO_WITH_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

constexpr std::int64_t tile_rows = 16;
constexpr std::int64_t tile_bytes = 64 * tile_rows;

// Compilers see no memory in the instructions of tiles (GCC 12): without this they may move stores past a load of a tile, or
// loads before a store of one.
inline void tiles_meet_memory() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// From begin_tiles to end_tiles, this thread's tile registers are all of full size.
STRETTO_WITH_TILES inline void begin_tiles() {
  alignas(64) const struct {
    std::uint8_t palette = 1, start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration;
  tiles_meet_memory();
  _tile_loadconfig(&configuration);
  tiles_meet_memory();
}
STRETTO_WITH_TILES inline void end_tiles() { _tile_release(); }

}  // namespace stretto::kernels::cpu
#endif
