#include "device/cpu/cpu_level.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string>

#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "device/cpu/product_libraries.hpp"
#include "stretto/build.hpp"

namespace stretto {
namespace kernels::cpu {
namespace {

struct Level {
  const char* name;
  std::int64_t too_high;  // Highway's targets above it: a better target has a lower bit
  dnnl_cpu_isa_t onednn;
  const char* onednn_name;
};
constexpr Level levels[] = {
    {"avx512", HWY_AVX3 - 1, dnnl_cpu_isa_avx512_core, "AVX512_CORE"},
    {"avx2", HWY_AVX2 - 1, dnnl_cpu_isa_avx2, "AVX2"},
    {"baseline", HWY_SSSE3 | (HWY_SSSE3 - 1), dnnl_cpu_isa_sse41, "SSE41"},  // oneDNN knows no lower one
};

const Level* wanted_level() {  // null: all that the processor has
  const std::string wanted = choice_setting("STRETTO_CPU_LEVEL");
  const auto* const found =
      std::find_if(std::begin(levels), std::end(levels), [&](const Level& level) { return wanted == level.name; });
  return found == std::end(levels) ? nullptr : found;
}

std::string onednn_instructions() {
  cap_onednn();
  switch (dnnl::dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_all: return "below SSE4.1";
    case dnnl_cpu_isa_sse41: return "SSE4.1";
    case dnnl_cpu_isa_avx: return "AVX";
    case dnnl_cpu_isa_avx2: return "AVX2";
    case dnnl_cpu_isa_avx2_vnni: return "AVX2 with VNNI";
    case dnnl_cpu_isa_avx512_core: return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni: return "AVX-512 with VNNI";
    case dnnl_cpu_isa_avx512_core_bf16: return "AVX-512 with bf16";
    case dnnl_cpu_isa_avx512_core_amx: return "AVX-512 with AMX";
    default: return fmt::format("instruction set {:#x}", static_cast<unsigned>(dnnl::dnnl_get_effective_cpu_isa()));
  }
}

}  // namespace

hwy::ChosenTarget& apply_cpu_level() {
  static auto& mutex = *new std::mutex;  // kernels may run in destructors of static storage
  const std::lock_guard lock(mutex);
  if (hwy::ChosenTarget* const choice = capped_choice.load(std::memory_order_relaxed)) return *choice;
  if (const Level* const level = wanted_level()) {
    require(HWY_ARCH_X86 != 0, "STRETTO_CPU_LEVEL={} is a level of x86-64 processors; unset it on this one.", level->name);
    hwy::DisableTargets(level->too_high);
  } else {
#if HWY_ARCH_X86
    rounds_to_bf16 = __builtin_cpu_supports("avx512bf16");
#endif
  }
  hwy::ChosenTarget& choice = hwy::GetChosenTarget();
  capped_choice.store(&choice, std::memory_order_release);
  return choice;
}

void cap_onednn() {
  [[maybe_unused]] static const bool capped = [] {
    const Level* const level = wanted_level();
    if (level != nullptr && dnnl::dnnl_set_max_cpu_isa(level->onednn) != dnnl_success &&
        (dnnl::dnnl_get_effective_cpu_isa() & ~level->onednn) != 0) {
      fail(ErrorCode::unavailable,
           "STRETTO_CPU_LEVEL={} cannot cap oneDNN, which this process has used before; set DNNL_MAX_CPU_ISA={} as well.",
           level->name, level->onednn_name);
    }
    return true;
  }();
}

}  // namespace kernels::cpu

std::string vector_target() {
  kernels::cpu::cap_cpu_level();
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);
}

std::vector<std::pair<std::string, std::string>> instruction_sets() {
  kernels::cpu::cap_cpu_level();
  return {{"Highway", vector_target()},
          {"oneDNN", kernels::cpu::onednn_instructions()},
          {"OpenBLAS", kernels::cpu::openblas_get_corename()}};
}

}  // namespace stretto
