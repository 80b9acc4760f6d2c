#pragma once
#include <atomic>

// STRETTO_CPU_LEVEL, applied to the instructions that Highway and oneDNN choose. Each chooses at its first call, for the
// whole process: a host kernel therefore caps them before it calls either.
namespace stretto::kernels::cpu {

inline constinit std::atomic<bool> cpu_level_is_applied = false;

// Throws Error(invalid_argument) for an unknown level, and Error(unavailable) where oneDNN has been used before and cannot
// be capped any more.
void apply_cpu_level();

inline void cap_cpu_level() {
  if (!cpu_level_is_applied.load(std::memory_order_acquire)) [[unlikely]]
    apply_cpu_level();
}

// HWY_DYNAMIC_DISPATCH within the level; for files that include Highway.
#define STRETTO_DISPATCH(kernel) (::stretto::kernels::cpu::cap_cpu_level(), HWY_DYNAMIC_DISPATCH(kernel))

}  // namespace stretto::kernels::cpu
