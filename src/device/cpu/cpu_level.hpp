#pragma once
#include <hwy/targets.h>

#include <atomic>

// STRETTO_CPU_LEVEL, applied to the instructions that Highway and oneDNN choose. Each library chooses at its first call, for
// the whole process: a host kernel must therefore limit the choice before it calls the library.
namespace stretto::kernels::cpu {

// Highway's choice, once it is capped; null before.
inline constinit std::atomic<hwy::ChosenTarget*> capped_choice = nullptr;

// Whether the level has the instruction that rounds f32 to bf16 (AVX512_BF16). Set with the choice.
inline constinit bool rounds_to_bf16 = false;

// Throws Error(invalid_argument) for an unknown level.
hwy::ChosenTarget& apply_cpu_level();

inline hwy::ChosenTarget& cap_cpu_level() {
  if (hwy::ChosenTarget* const choice = capped_choice.load(std::memory_order_acquire)) [[likely]]
    return *choice;
  return apply_cpu_level();
}

// Comes before every other call of oneDNN, which it loads if a level is set. Throws Error(unavailable) if oneDNN has been
// used before and cannot be capped any more.
void cap_onednn();

// HWY_DYNAMIC_DISPATCH limited to the level, without its function call into Highway's library.
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
#define STRETTO_DISPATCH(kernel) (::stretto::kernels::cpu::cap_cpu_level(), HWY_DYNAMIC_DISPATCH(kernel))
#else
#define STRETTO_DISPATCH(kernel) (*HWY_DISPATCH_TABLE(kernel)[::stretto::kernels::cpu::cap_cpu_level().GetIndex()])
#endif

}  // namespace stretto::kernels::cpu
