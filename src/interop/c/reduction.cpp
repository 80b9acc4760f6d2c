// Types and reductions of the C interface, with premultiplied sums.
#include "interop/c/reduction.hpp"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "interop/c/answer.hpp"
#include "stretto/dtype.hpp"

namespace stretto::c {
namespace {

// Indexed by strettoDataType_t.
constexpr std::array<DType, strettoNumTypes> dtypes{DType::i8,  DType::u8,   DType::i32,    DType::u32,
                                                    DType::i64, DType::u64,  DType::f16,    DType::f32,
                                                    DType::f64, DType::bf16, DType::f8e4m3, DType::f8e5m2};

template <class T>
double read(const void* scalar) {
  T value;
  std::memcpy(&value, scalar, sizeof value);
  if constexpr (std::is_integral_v<T>) {
    const auto factor = static_cast<double>(value);
    require(factor < std::ldexp(1.0, std::numeric_limits<T>::digits) && static_cast<T>(factor) == value,
            "The scalar {} of a premultiplied sum needs more than the 53 bits that a factor has.", value);
    return factor;
  } else if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<float>(value);
  }
}

double read(const void* scalar, DType dtype) {
  switch (dtype) {
    case DType::f64: return read<double>(scalar);
    case DType::f32: return read<float>(scalar);
    case DType::bf16: return read<bf16>(scalar);
    case DType::f16: return read<f16>(scalar);
    case DType::i8: return read<std::int8_t>(scalar);
    case DType::u8: return read<std::uint8_t>(scalar);
    case DType::i32: return read<std::int32_t>(scalar);
    case DType::u32: return read<std::uint32_t>(scalar);
    case DType::i64: return read<std::int64_t>(scalar);
    case DType::u64: return read<std::uint64_t>(scalar);
    case DType::f8e4m3: return read<f8e4m3>(scalar);
    case DType::f8e5m2: return read<f8e5m2>(scalar);
  }
  return 0;
}

}  // namespace

DType dtype_of_c(strettoDataType_t datatype) {
  const auto number = static_cast<unsigned>(datatype);
  require(number < strettoNumTypes, "There is no strettoDataType_t {}; they are 0 to {}.", static_cast<int>(datatype),
          strettoNumTypes - 1);
  return dtypes[number];
}

Reduction reduction_of(strettoComm& comm, strettoRedOp_t op, strettoDataType_t datatype) {
  switch (op) {
    case strettoSum: return {ReduceOp::sum};
    case strettoProd: return {ReduceOp::prod};
    case strettoMax: return {ReduceOp::max};
    case strettoMin: return {ReduceOp::min};
    case strettoAvg: return {ReduceOp::avg};
    default: break;
  }
  const std::lock_guard lock(comm.mutex);
  const auto found = comm.reductions.find(op);
  require(found != comm.reductions.end(),
          "Communicator '{}' has no reduction {}: strettoRedOpCreatePreMulSum did not make it there, or it is destroyed.",
          comm.ranks.name(), static_cast<int>(op));
  require(found->second.datatype == datatype, "Reduction {} was made for {}, and is used for {}.", static_cast<int>(op),
          name(dtype_of_c(found->second.datatype)), name(dtype_of_c(datatype)));
  return {ReduceOp::premul_sum, found->second.factor};
}

}  // namespace stretto::c

using namespace stretto::c;
using stretto::require;
using Comm = std::shared_ptr<strettoComm>;

strettoResult_t strettoRedOpCreatePreMulSum(strettoRedOp_t* op, void* scalar, strettoDataType_t datatype,
                                            strettoScalarResidence_t residence, strettoComm_t handle) {
  return answer_on(handle, [&](const Comm& comm) {
    require(op != nullptr && scalar != nullptr, "strettoRedOpCreatePreMulSum got NULL for its {}.",
            op == nullptr ? "result" : "scalar");
    require(residence == strettoScalarHostImmediate,
            "strettoRedOpCreatePreMulSum got residence {}; only strettoScalarHostImmediate is served: the scalar is read in "
            "this call.",
            static_cast<int>(residence));
    const double factor = read(scalar, dtype_of_c(datatype));
    // Numbers are unique in the process, so that a reduction of another communicator is never taken for one of this one.
    static std::atomic<int> next = strettoNumOps;
    const int number = next++;
    const std::lock_guard lock(comm->mutex);
    comm->reductions.emplace(number, strettoComm::Reduction{datatype, factor});
    *op = static_cast<strettoRedOp_t>(number);
  });
}

strettoResult_t strettoRedOpDestroy(strettoRedOp_t op, strettoComm_t handle) {
  return answer_on(handle, [&](const Comm& comm) {
    const std::lock_guard lock(comm->mutex);
    require(comm->reductions.erase(op) == 1, "Communicator '{}' has no reduction {} to destroy.", comm->ranks.name(),
            static_cast<int>(op));
  });
}
