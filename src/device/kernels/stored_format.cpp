#include "stretto/stored_format.hpp"

#include <algorithm>
#include <vector>

#include "core/names.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/gpu.hpp"
#include "device/kernels/arguments.hpp"
#include "device/kernels/compute_types.hpp"
#include "device/kernels/nf4.hpp"
#include "device/stream/kernel_scope.hpp"

namespace stretto {
namespace {

constexpr const char* format_names[] = {"plain", "nf4", "int8"};

static_assert(stored_record_elements(StoredFormat::nf4) == kernels::nf4::record_elements);
static_assert(stored_record_bytes(StoredFormat::nf4) == kernels::nf4::record_bytes);

void check_records(const char* function, StoredFormat format, const Tensor& values, const Tensor& records) {
  kernels::check_compute_type(values.dtype());
  require(
      format != StoredFormat::plain && records.dtype() == DType::u8 && records.size() == stored_bytes(format, values.size()),
      "{} needs {} bytes of {} records for {} values, and got {} of {}.", function, stored_bytes(format, values.size()),
      name(format), values.size(), records.size(), name(records.dtype()));
}

constexpr std::int64_t batch = kernels::nf4::record_elements;

// Calls f(first element, elements) for each record of nf4.
template <class F>
void for_each_batch(const Tensor& values, F f) {
  for (std::int64_t first = 0; first < values.size(); first += batch) f(first, std::min(batch, values.size() - first));
}

void read(const Tensor& values, float* to) {
  if (values.dtype() == DType::f32) return static_cast<void>(std::copy_n(values.data<float>(), values.size(), to));
  kernels::cpu::convert(values.dtype(), values.raw(), DType::f32, to, values.size());
}
void write(const float* from, const Tensor& values) {
  if (values.dtype() == DType::f32) return static_cast<void>(std::copy_n(from, values.size(), values.data<float>()));
  kernels::cpu::convert(DType::f32, from, values.dtype(), values.raw(), values.size());
}

}  // namespace

const char* name(StoredFormat format) { return name_in(format_names, format); }

StoredFormat stored_format_from_name(const std::string& text) {
  return value_in<StoredFormat>(format_names, text, "format of stored values");
}

namespace kernels {

void store_values(StoredFormat format, const Tensor& values, const Tensor& records) {
  check_records("store_values", format, values, records);
  if (values.dtype() == DType::f64) {
    const Tensor narrow(values.shape(), DType::f32);
    convert(values, narrow);
    return store_values(format, narrow, records);
  }
  const KernelScope scope("store values");
  if (scope.skipped() || values.size() == 0) return;
  if (on_gpu("store_values", values, records)) return gpu().kernels().store_values(format, values, records, gpu_stream());
  if (format == StoredFormat::int8)
    return cpu::quantize(QuantizedFormat::int8, values.dtype(), values.raw(), records.raw(), values.size(), {});
  std::vector<float> numbers(batch);
  for_each_batch(values, [&](std::int64_t first, std::int64_t count) {
    std::fill(numbers.begin() + count, numbers.end(), 0.0F);
    read(values.view(first, {count}), numbers.data());
    cpu::store_nf4(numbers.data(), records.data<std::uint8_t>() + stored_bytes(format, first));
  });
}

void restore_values(StoredFormat format, const Tensor& records, const Tensor& values) {
  check_records("restore_values", format, values, records);
  if (values.dtype() == DType::f64) {
    const Tensor narrow(values.shape(), DType::f32);
    restore_values(format, records, narrow);
    return convert(narrow, values);
  }
  const KernelScope scope("restore values");
  if (scope.skipped() || values.size() == 0) return;
  if (on_gpu("restore_values", records, values))
    return gpu().kernels().restore_values(format, records, values, gpu_stream());
  if (format == StoredFormat::int8) {
    const void* const from = records.raw();
    return cpu::dequantize_reduce(QuantizedFormat::int8, &from, 1, values.dtype(), values.raw(), values.size(), 1);
  }
  std::vector<float> numbers(batch);
  for_each_batch(values, [&](std::int64_t first, std::int64_t count) {
    const std::uint8_t* const record = records.data<std::uint8_t>() + stored_bytes(format, first);
    if (values.dtype() == DType::f32 && count == batch) return cpu::restore_nf4(record, values.data<float>() + first);
    cpu::restore_nf4(record, numbers.data());
    write(numbers.data(), values.view(first, {count}));
  });
}

}  // namespace kernels
}  // namespace stretto
