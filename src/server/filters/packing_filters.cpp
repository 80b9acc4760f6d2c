// The filters that give elements fewer bits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/fail.hpp"
#include "core/split_mix.hpp"
#include "stretto/kernels.hpp"
#include "stretto/push_filters.hpp"
#include "transport/bootstrap/packing.hpp"

namespace stretto::push_filters {
namespace {

// Elements are codes of `bytes` bytes, the lowest byte first. The note is the largest magnitude, which the largest code
// stands for; it is empty if the elements are as they were.
class FixedPoint final : public PushFilter {
 public:
  FixedPoint(int bytes, std::uint64_t seed) : bytes_(bytes), largest_code_((1 << (8 * bytes - 1)) - 1), state_(seed) {}

  void encode(PushedMessage& message) override {
    message.notes.emplace_back();
    if (!message.rows) return;
    const std::int64_t count = message.rows.size();
    const float* const values = message.rows.data<float>();
    if (!std::all_of(values, values + count, [](float each) { return std::isfinite(each); })) {
      message.rows = message.rows.view(std::size_t{0}, {static_cast<std::int64_t>(message.rows.bytes())}, DType::u8);
      return;
    }
    double largest = 0;
    for (std::int64_t i = 0; i < count; ++i) largest = std::max<double>(largest, std::fabs(values[i]));
    message.notes.back() = bytes_of(std::vector<double>{largest});
    const Tensor codes({count * bytes_}, DType::u8);
    for (std::int64_t i = 0; i < count; ++i) {
      const double draw = static_cast<double>(split_mixed(state_ += split_mix_step) >> 11) * 0x1p-53;
      const double scaled = largest == 0 ? 0 : static_cast<double>(values[i]) / largest * largest_code_;
      const auto code = static_cast<std::int32_t>(std::floor(scaled + draw));
      std::memcpy(static_cast<std::byte*>(codes.raw()) + i * bytes_, &code, static_cast<std::size_t>(bytes_));
    }
    message.rows = codes;
  }

  void decode(PushedMessage& message) const override {
    ensure(!message.notes.empty(), "A push in fixed point came without its scale.");
    const auto scale = values_of<double>(message.notes.back());
    message.notes.pop_back();
    const std::int64_t of_one = scale.empty() ? std::int64_t{sizeof(float)} : bytes_;
    const std::int64_t count = message.rows.size() / of_one;
    ensure(message.rows.size() == count * of_one, "A push in fixed point came with {} bytes for elements of {}.",
           message.rows.size(), of_one);
    if (count == 0) return;
    if (scale.empty()) {
      message.rows = message.rows.view(std::size_t{0}, {count}, DType::f32);
      return;
    }
    const Tensor values({count}, DType::f32);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int32_t code = 0;  // in the upper bytes, so that the shift extends the sign
      std::memcpy(reinterpret_cast<std::byte*>(&code) + sizeof code - static_cast<std::size_t>(bytes_),
                  static_cast<const std::byte*>(message.rows.raw()) + i * bytes_, static_cast<std::size_t>(bytes_));
      code >>= 32 - 8 * bytes_;
      values.data<float>()[i] = static_cast<float>(static_cast<double>(code) / largest_code_ * scale.front());
    }
    message.rows = values;
  }

 private:
  int bytes_, largest_code_;
  std::uint64_t state_;
};

class Quantized final : public PushFilter {
 public:
  Quantized(QuantizedFormat format, std::int64_t count)
      : format_(format), count_(count), error_(Tensor::zeros({count}, DType::f32)) {}

  void encode(PushedMessage& message) override {
    const Tensor records({packed_bytes(format_, count_)}, DType::u8);
    kernels::quantize(format_, DType::f32, message.rows.raw(), records.raw(), count_, {.residual = error_.data<float>()});
    message.rows = records;
  }

  void decode(PushedMessage& message) const override {
    ensure(message.rows.size() == packed_bytes(format_, count_), "A push of {} elements in {} came with {} bytes.", count_,
           name(format_), message.rows.size());
    const Tensor values({count_}, DType::f32);
    kernels::dequantize(format_, message.rows.raw(), DType::f32, values.raw(), count_);
    message.rows = values;
  }

 private:
  QuantizedFormat format_;
  std::int64_t count_;
  Tensor error_;
};

}  // namespace

FilterKind fixed_point(int bytes) {
  require(bytes >= 1 && bytes <= 3, "Elements cannot travel in {} bytes of fixed point; give 1 to 3.", bytes);
  return {fmt::format("fixed_point({})", bytes),
          [=](const FilteredPart& part) { return std::make_unique<FixedPoint>(bytes, part.seed); }, true};
}

FilterKind quantized(QuantizedFormat format) {
  require(format != QuantizedFormat::none, "Format none quantizes nothing; leave the filter out.");
  return {fmt::format("quantized({})", name(format)),
          [=](const FilteredPart& part) { return std::make_unique<Quantized>(format, part.count); }, true, true};
}

}  // namespace stretto::push_filters
