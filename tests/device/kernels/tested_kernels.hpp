#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <type_traits>
#include <vector>

#include "device/gpu.hpp"
#include "device/missing.hpp"
#include "device/test_device.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "support/tiers.hpp"

// The kernels under the names of stretto/kernels.hpp, run on the device that this program tests: device_tests tests the
// host, gpu_tests is built from the same files. A test keeps its numbers in host memory and makes the same calls on both
// devices. On a GPU, each call copies its arguments there, between guards and at addresses of the same alignment, and copies
// all of them back.
namespace stretto {

// Skips a test of a feature that only the host has.
#define HOST_ONLY(reason) \
  if (test_device() != Device::cpu) GTEST_SKIP() << (reason)

// Whether only some of the cases that calls_are_slow() leaves are tried: not by ./dev test --all.
inline bool few_cases() { return calls_are_slow() && (!all_tests() || daily_tests()); }

// The memory of one call on the tested device.
class Mirror {
 public:
  // The device's copy of `bytes` bytes of host memory; the same copy for the same address.
  void* operator()(const void* host, std::size_t bytes) {
    if (test_device() == Device::cpu) return const_cast<void*>(host);
    for (const Piece& piece : pieces_) {
      if (piece.host == host && piece.bytes == bytes) return piece.begin();
    }
    Piece& piece = pieces_.emplace_back();
    piece.host = const_cast<void*>(host);
    piece.bytes = bytes;
    piece.skipped = guard + reinterpret_cast<std::uintptr_t>(host) % 64;
    piece.memory = Tensor({static_cast<std::int64_t>(piece.skipped + bytes + guard)}, DType::u8);
    std::vector<std::uint8_t> contents(piece.memory.bytes(), guard_byte);
    if (bytes > 0) std::memcpy(contents.data() + piece.skipped, host, bytes);
    piece.memory.copy_from_host(contents.data());
    return piece.begin();
  }
  kernels::TokenHeads operator()(const kernels::TokenHeads& host) {
    return {(*this)(host.tensor), host.first_column, host.parts, host.part_step};
  }
  kernels::Epilogue operator()(const kernels::Epilogue& host) { return {host.activation, (*this)(host.activated)}; }
  kernels::BackwardEpilogue operator()(const kernels::BackwardEpilogue& host) {
    return {host.activation, (*this)(host.before)};
  }
  kernels::AttentionBlock operator()(const kernels::AttentionBlock& host) {
    kernels::AttentionBlock block = host;
    const auto bytes = static_cast<std::size_t>(block.batch * block.queries) * sizeof *block.starts;
    if (block.starts != nullptr) block.starts = static_cast<const std::int32_t*>((*this)(block.starts, bytes));
    return block;
  }
  Tensor operator()(const Tensor& host) {
    if (test_device() == Device::cpu || is_missing(host)) return host;
    const void* const begin = (*this)(host.raw(), host.bytes());
    for (const Piece& piece : pieces_) {
      if (piece.begin() == begin) return piece.memory.view(piece.skipped, host.shape(), host.dtype());
    }
    return {};
  }

  // Copies everything back as the call has left it.
  ~Mirror() {
    for (const Piece& piece : pieces_) {
      std::vector<std::uint8_t> contents(piece.memory.bytes());
      piece.memory.copy_to_host(contents.data());
      const std::size_t end = piece.skipped + piece.bytes;
      for (std::size_t i = 0; i < contents.size(); ++i) {
        if ((i < piece.skipped || i >= end) && contents[i] != guard_byte) {
          ADD_FAILURE() << "the GPU has written outside of " << piece.bytes << " bytes, at "
                        << static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(piece.skipped);
          break;
        }
      }
      if (piece.bytes > 0) std::memcpy(piece.host, contents.data() + piece.skipped, piece.bytes);
    }
  }
  Mirror() = default;
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

 private:
  static constexpr std::size_t guard = 64;
  static constexpr std::uint8_t guard_byte = 0x5a;
  struct Piece {
    void* host;
    std::size_t bytes, skipped;
    Tensor memory;
    std::byte* begin() const { return static_cast<std::byte*>(memory.raw()) + skipped; }
  };
  OnDevice device_{test_device()};
  std::deque<Piece> pieces_;
};

}  // namespace stretto

namespace stretto::kernels::tested {

// Function objects, so that calls by these names do not find the kernels themselves by argument-dependent lookup.

// A kernel whose arguments are tensors and plain values.
template <class Result, class... Parameters>
struct OnTestDevice {
  Result (*kernel)(Parameters...);

  Result operator()(Parameters... arguments) const {
    Mirror mirror;
    const auto there = [&](const auto& argument) {
      using Argument = std::decay_t<decltype(argument)>;
      if constexpr (std::is_invocable_v<Mirror&, const Argument&>) {
        return mirror(argument);
      } else {
        return argument;
      }
    };
    return kernel(there(arguments)...);
  }
};
template <class Result, class... Parameters>
OnTestDevice(Result (*)(Parameters...)) -> OnTestDevice<Result, Parameters...>;

inline constexpr OnTestDevice add{&kernels::add};
inline constexpr OnTestDevice scale{&kernels::scale};
inline constexpr OnTestDevice dropout{&kernels::dropout};
inline constexpr OnTestDevice copy_columns{&kernels::copy_columns};
inline constexpr OnTestDevice sum_of_squares{&kernels::sum_of_squares};
inline constexpr auto sums_of_squares = [](const std::vector<Tensor>& xs) {
  Mirror mirror;
  std::vector<Tensor> there;
  for (const Tensor& x : xs) there.push_back(mirror(x));
  return kernels::sums_of_squares(there);
};
inline constexpr OnTestDevice gelu_forward{&kernels::gelu_forward};
inline constexpr OnTestDevice gelu_backward{&kernels::gelu_backward};
inline constexpr OnTestDevice add_bias{&kernels::add_bias};
inline constexpr OnTestDevice add_bias_gelu{&kernels::add_bias_gelu};
inline constexpr OnTestDevice add_column_sums{&kernels::add_column_sums};
inline constexpr OnTestDevice layer_norm_forward{&kernels::layer_norm_forward};
inline constexpr OnTestDevice layer_norm_backward{&kernels::layer_norm_backward};
inline constexpr OnTestDevice activation_forward{&kernels::activation_forward};
inline constexpr OnTestDevice activation_backward{&kernels::activation_backward};
inline constexpr OnTestDevice rms_norm_forward{&kernels::rms_norm_forward};
inline constexpr OnTestDevice rms_norm_backward{&kernels::rms_norm_backward};
inline constexpr OnTestDevice head_norm_forward{&kernels::head_norm_forward};
inline constexpr OnTestDevice head_norm_backward{&kernels::head_norm_backward};
inline constexpr auto rotary = [](const TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table,
                                  const TokenHeads& out, bool inverse = false) {
  OnTestDevice{&kernels::rotary}(x, heads, positions, table, out, inverse);
};
inline constexpr OnTestDevice softmax{&kernels::softmax};
inline constexpr OnTestDevice cross_entropy_forward{&kernels::cross_entropy_forward};
inline constexpr OnTestDevice cross_entropy_rebase{&kernels::cross_entropy_rebase};
inline constexpr OnTestDevice cross_entropy_backward{&kernels::cross_entropy_backward};
inline constexpr OnTestDevice embedding_forward{&kernels::embedding_forward};
inline constexpr OnTestDevice embedding_backward{&kernels::embedding_backward};
inline constexpr OnTestDevice adamw{&kernels::adamw};
inline constexpr OnTestDevice sgd{&kernels::sgd};
inline constexpr OnTestDevice attention_forward{&kernels::attention_forward};
inline constexpr OnTestDevice attention_backward{&kernels::attention_backward};
inline constexpr auto attention_block_forward = [](const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k,
                                                   const TokenHeads& v, const TokenHeads& out, const Tensor& log_sum_exp,
                                                   bool merge = false) {
  OnTestDevice{&kernels::attention_block_forward}(block, q, k, v, out, log_sum_exp, merge);
};
inline constexpr auto attention_block_backward = [](const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k,
                                                    const TokenHeads& v, const TokenHeads& out, const Tensor& log_sum_exp,
                                                    const TokenHeads& dout, const TokenHeads& dq, const TokenHeads& dk,
                                                    const TokenHeads& dv, const AttentionSums& sums = {}) {
  OnTestDevice{&kernels::attention_block_backward}(block, q, k, v, out, log_sum_exp, dout, dq, dk, dv, sums);
};

inline constexpr auto linear = [](const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                                  const Epilogue& epilogue = {}) {
  OnTestDevice{&kernels::linear}(x, weight, bias, y, epilogue);
};
inline constexpr OnTestDevice finish_linear{&kernels::finish_linear};
inline constexpr OnTestDevice finish_linear_backward{&kernels::finish_linear_backward};
inline constexpr OnTestDevice linear_add{&kernels::linear_add};
inline constexpr OnTestDevice linear_backward{&kernels::linear_backward};

inline constexpr auto gemm = [](const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                                const Tensor& c, bool accumulate = false) {
  OnTestDevice{&kernels::gemm}(a, transpose_a, b, transpose_b, c, accumulate);
};

// ---- those of collectives, which take pointers

inline std::size_t bytes_of(DType dtype, std::int64_t count) { return static_cast<std::size_t>(count) * size_of(dtype); }

inline std::vector<const void*> mirrored(Mirror& mirror, const void* const* arrays, int count, std::size_t bytes) {
  std::vector<const void*> result;
  for (int i = 0; i < count; ++i) result.push_back(mirror(arrays[i], bytes));
  return result;
}

struct ReduceAll {
  void operator()(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out, std::int64_t count,
                  std::int64_t divisor = 1) const {
    if (test_device() == Device::cpu) return kernels::reduce_all(op, dtype, sources, source_count, out, count, divisor);
    Mirror mirror;
    const std::size_t bytes = bytes_of(dtype, count);
    const std::vector<const void*> from = mirrored(mirror, sources, source_count, bytes);
    gpu().kernels().reduce_all(op, dtype, from.data(), source_count, mirror(out, bytes), count, divisor, gpu_stream());
  }
  // To several outs: on the host only.
  void operator()(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* const* outs, int out_count,
                  std::int64_t count, std::int64_t divisor, bool streaming) const {
    kernels::reduce_all(op, dtype, sources, source_count, outs, out_count, count, divisor, streaming);
  }
};
inline constexpr ReduceAll reduce_all;

inline constexpr auto reduce = [](ReduceOp op, DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  if (test_device() == Device::cpu) return kernels::reduce(op, dtype, a, b, out, count);
  const void* const sources[] = {a, b};
  reduce_all(op, dtype, sources, 2, out, count);
};

inline constexpr auto multiply = [](DType dtype, const void* x, void* out, std::int64_t count, double factor) {
  if (test_device() == Device::cpu) return kernels::multiply(dtype, x, out, count, factor);
  Mirror mirror;
  const std::size_t bytes = bytes_of(dtype, count);
  gpu().kernels().multiply(dtype, mirror(x, bytes), mirror(out, bytes), count, factor, gpu_stream());
};

struct Convert {
  void operator()(const Tensor& from, const Tensor& out) const {
    Mirror mirror;
    kernels::convert(mirror(from), mirror(out));
  }
  void operator()(DType from, const void* x, DType to, void* out, std::int64_t count) const {
    if (test_device() == Device::cpu) return kernels::convert(from, x, to, out, count);
    Mirror mirror;
    gpu().kernels().convert(from, mirror(x, bytes_of(from, count)), to, mirror(out, bytes_of(to, count)), count,
                            gpu_stream());
  }
};
inline constexpr Convert convert;

inline std::size_t record_bytes_of(QuantizedFormat format, std::int64_t count) {
  return static_cast<std::size_t>(packed_bytes(format, count));
}
inline QuantizeOptions mirrored(Mirror& mirror, QuantizeOptions options, std::int64_t count) {
  if (options.residual != nullptr)
    options.residual = static_cast<float*>(mirror(options.residual, bytes_of(DType::f32, count)));
  return options;
}

inline constexpr auto quantize = [](QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                                    const QuantizeOptions& options = {}) {
  if (test_device() == Device::cpu) return kernels::quantize(format, dtype, x, records, count, options);
  Mirror mirror;
  gpu().kernels().quantize(format, dtype, mirror(x, bytes_of(dtype, count)), mirror(records, record_bytes_of(format, count)),
                           count, mirrored(mirror, options, count), gpu_stream());
};

inline constexpr auto dequantize_reduce = [](QuantizedFormat format, const void* const* vectors, int vector_count,
                                             DType dtype, void* out, std::int64_t count, std::int64_t divisor = 1) {
  if (test_device() == Device::cpu)
    return kernels::dequantize_reduce(format, vectors, vector_count, dtype, out, count, divisor);
  Mirror mirror;
  const std::vector<const void*> from = mirrored(mirror, vectors, vector_count, record_bytes_of(format, count));
  gpu().kernels().dequantize_reduce(format, from.data(), vector_count, dtype, mirror(out, bytes_of(dtype, count)), count,
                                    divisor, gpu_stream());
};

inline constexpr auto dequantize = [](QuantizedFormat format, const void* records, DType dtype, void* out,
                                      std::int64_t count) {
  if (test_device() == Device::cpu) return kernels::dequantize(format, records, dtype, out, count);
  Mirror mirror;
  gpu().kernels().dequantize(format, mirror(records, record_bytes_of(format, count)), dtype,
                             mirror(out, bytes_of(dtype, count)), count, gpu_stream());
};

inline constexpr auto requantize = [](QuantizedFormat format, const void* const* vectors, int vector_count,
                                      QuantizedFormat to, void* records, std::int64_t count, std::int64_t divisor = 1,
                                      const QuantizeOptions& options = {}) {
  if (test_device() == Device::cpu)
    return kernels::requantize(format, vectors, vector_count, to, records, count, divisor, options);
  Mirror mirror;
  const std::vector<const void*> from = mirrored(mirror, vectors, vector_count, record_bytes_of(format, count));
  gpu().kernels().requantize(format, from.data(), vector_count, to, mirror(records, record_bytes_of(to, count)), count,
                             divisor, mirrored(mirror, options, count), gpu_stream());
};

}  // namespace stretto::kernels::tested
