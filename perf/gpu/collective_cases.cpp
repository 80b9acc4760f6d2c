// The kernels of collectives have no public interface on a GPU: these cases use the library's own.
#include "device/gpu.hpp"
#include "kernel_cases.hpp"
#include "stretto/kernels.hpp"

namespace perf {

using namespace stretto;

namespace {

constexpr std::int64_t elements = 128 << 20;

Case reduce(DType dtype, int sources) {
  return {"reduce", std::to_string(sources) + " sources, " + name(dtype), (sources + 1) * elements * element_bytes(dtype), 0,
          [=] {
            std::vector<Tensor> from;
            from.reserve(static_cast<std::size_t>(sources));
            for (int i = 0; i < sources; ++i) from.push_back(random({elements}, dtype));
            const Tensor out({elements}, dtype);
            return [=] {
              std::vector<const void*> pointers;
              pointers.reserve(from.size());
              for (const Tensor& each : from) pointers.push_back(each.raw());
              gpu().kernels().reduce_all(ReduceOp::sum, dtype, pointers.data(), sources, out.raw(), elements, 1,
                                         gpu_stream());
            };
          }};
}

Case convert(DType from, DType to) {
  return {"convert", std::string(name(from)) + " to " + name(to), elements * (element_bytes(from) + element_bytes(to)), 0,
          [=] {
            const Tensor x = random({elements}, from);
            const Tensor y({elements}, to);
            return [=] { kernels::convert(x, y); };
          }};
}

Tensor records_of(QuantizedFormat format, DType dtype) {
  const Tensor x = random({elements}, dtype);
  Tensor records({packed_bytes(format, elements)}, DType::u8);
  gpu().kernels().quantize(format, dtype, x.raw(), records.raw(), elements, {}, gpu_stream());
  return records;
}

std::vector<Case> quantization(QuantizedFormat format, DType dtype) {
  const double of_records = static_cast<double>(packed_bytes(format, elements));
  const double of_elements = elements * element_bytes(dtype);
  const std::string what = std::string(name(format)) + ", " + name(dtype);
  return {{"quantize", what, of_elements + of_records, 0,
           [=] {
             const Tensor x = random({elements}, dtype);
             const Tensor records({packed_bytes(format, elements)}, DType::u8);
             return [=] { gpu().kernels().quantize(format, dtype, x.raw(), records.raw(), elements, {}, gpu_stream()); };
           }},
          {"dequantize", what, of_elements + of_records, 0,
           [=] {
             const Tensor records = records_of(format, dtype);
             const Tensor out({elements}, dtype);
             return [=] { gpu().kernels().dequantize(format, records.raw(), dtype, out.raw(), elements, gpu_stream()); };
           }},
          {"dequantize_reduce", what + ", 2 vectors", of_elements + 2 * of_records, 0,
           [=] {
             const Tensor one = records_of(format, dtype);
             const Tensor other = records_of(format, dtype);
             const Tensor out({elements}, dtype);
             return [=] {
               const void* const vectors[] = {one.raw(), other.raw()};
               gpu().kernels().dequantize_reduce(format, vectors, 2, dtype, out.raw(), elements, 1, gpu_stream());
             };
           }},
          {"requantize", what + ", 2 vectors", 3 * of_records, 0, [=] {
             const Tensor one = records_of(format, dtype);
             const Tensor other = records_of(format, dtype);
             const Tensor out({packed_bytes(format, elements)}, DType::u8);
             return [=] {
               const void* const vectors[] = {one.raw(), other.raw()};
               gpu().kernels().requantize(format, vectors, 2, format, out.raw(), elements, 1, {}, gpu_stream());
             };
           }}};
}

}  // namespace

Case copy_case() {
  constexpr std::int64_t bytes = 512 << 20;
  return {"copy", "512 MiB", 2.0 * bytes, 0, [] {
            const Tensor from = random({bytes / 4}, DType::f32);
            const Tensor to({bytes / 4}, DType::f32);
            return [=] { gpu().copy(to.raw(), from.raw(), bytes, gpu_stream()); };
          }};
}

std::vector<Case> collective_cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int sources : {2, 8}) all.push_back(reduce(dtype, sources));
  }
  all.push_back(convert(DType::f32, DType::bf16));
  all.push_back(convert(DType::bf16, DType::f32));
  for (const QuantizedFormat format :
       {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::fp8, QuantizedFormat::onebit}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (Case& each : quantization(format, dtype)) all.push_back(std::move(each));
    }
  }
  return all;
}

}  // namespace perf
