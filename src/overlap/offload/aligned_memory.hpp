#pragma once
#include "core/files/scratch_file.hpp"
#include "stretto/tensor.hpp"

namespace stretto {

// Bytes at an address for direct reads and writes, with room behind them up to a whole block.
inline Tensor aligned_memory(std::int64_t bytes) {
  const Tensor all = Tensor::symmetric({ScratchFile::aligned(bytes) + ScratchFile::alignment}, DType::u8);
  const auto address = reinterpret_cast<std::uintptr_t>(all.raw());
  const auto past = static_cast<std::int64_t>(address % ScratchFile::alignment);
  return all.view(past == 0 ? 0 : ScratchFile::alignment - past, {bytes});
}

}  // namespace stretto
