// Matrix products by cuBLASLt, which adds a bias and applies GELU in the same pass where it can.
//
// cuBLASLt is column-major: a row-major [rows, columns] matrix here is a column-major columns x rows matrix there, without
// moving an element. Therefore c = op(a) op(b) is computed as c^T = op(b)^T op(a)^T: b comes first, and a matrix is
// transposed for cuBLASLt exactly if it is transposed here.
#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "core/fail.hpp"
#include "device/cuda/cuda_kernels.hpp"
#include "device/cuda/runtime/relaxed_capture.hpp"
#include "device/cuda/runtime/stream_memory.hpp"

namespace stretto {
namespace {

using kernels::Transpose;

constexpr std::size_t most_workspace = std::size_t{32} << 20;  // what NVIDIA recommends for Hopper

// Everything on which the choice of an algorithm depends. The tensors of an epilogue are aligned to most_alignment.
struct Product {
  std::int64_t m, n, k;  // op(a): [m, k], op(b): [k, n], c: [m, n], none of them empty
  bool transpose_a, transpose_b;
  DType dtype, dtype_c;
  cublasLtEpilogue_t epilogue;
  std::size_t aligned_a, aligned_b, aligned_c;
  auto operator<=>(const Product&) const = default;
};

struct Operands {
  const void *a, *b;
  void* c;
  const void* bias = nullptr;    // [n]
  void* aux = nullptr;           // [m, n]: the argument of GELU or of its derivative
  const void* addend = nullptr;  // [m, n]: the product is added to it; may be c itself
};

struct Algorithm {
  cublasLtMatmulAlgo_t chosen;
  std::size_t workspace;
};

void check(cublasStatus_t status, const Product& product, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  fail(ErrorCode::unavailable, "cuBLASLt could not {} [{}, {}] times [{}, {}] of {} into {}: {}.", what, product.m,
       product.k, product.k, product.n, name(product.dtype), name(product.dtype_c), cublasLtGetStatusString(status));
}

// No kernel needs an alignment above 16 bytes. Treating larger alignments as 16 keeps the choice of an algorithm, and with
// it the order of sums, the same wherever in its pool a matrix is.
constexpr std::uintptr_t most_alignment = 16;
std::size_t alignment(const void* pointer) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(pointer) | most_alignment;
  return address & (~address + 1);
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    default: return CUDA_R_16F;
  }
}

// The descriptors of one call, on the stack.
class Description {
 public:
  Description(const Product& product, const void* bias, void* aux) : product_(product) {
    const bool wide = product.dtype == DType::f64;
    // True f32 products, not TF32 (which CUBLAS_COMPUTE_32F_FAST_TF32 would allow): gradients must agree with the host's.
    check(cublasLtMatmulDescInit(&operation, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F),
          product, "describe");
    set(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue);
    if (bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (aux != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.n);
    }
    lay_out(b, product.dtype, product.transpose_b ? product.n : product.k, product.transpose_b ? product.k : product.n);
    lay_out(a, product.dtype, product.transpose_a ? product.k : product.m, product.transpose_a ? product.m : product.k);
    lay_out(c, product.dtype_c, product.m, product.n);
  }

  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value), product_, "describe");
  }
  void lay_out(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, std::int64_t rows, std::int64_t columns) {
    check(cublasLtMatrixLayoutInit(&layout, cuda_type(dtype), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), columns),
          product_, "describe");
  }

  const Product& product_;
};

// One handle for all threads, which may use it at the same time. Never destroyed: at exit the driver may shut down first.
cublasLtHandle_t handle(const Product& product) {
  static const cublasLtHandle_t made = [&] {
    const RelaxedCapture relaxed;
    cublasLtHandle_t result = nullptr;
    check(cublasLtCreate(&result), product, "get ready for");
    return result;
  }();
  return made;
}

std::optional<Algorithm> ask(const Product& product, bool of_any_alignment) {
  void* const somewhere = reinterpret_cast<void*>(most_alignment);  // only the alignment matters
  const bool has_bias = product.epilogue == CUBLASLT_EPILOGUE_BIAS || product.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  const bool has_aux = product.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || product.epilogue == CUBLASLT_EPILOGUE_DGELU;
  Description description(product, has_bias ? somewhere : nullptr, has_aux ? somewhere : nullptr);
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), product, "choose how to multiply");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), product,
          "choose how to multiply");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(most_workspace));
  // Partial sums over k are added in the accumulator type and in a fixed order, never in c.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto aligned = [&](std::size_t as_it_is, DType dtype) {
    return static_cast<std::uint32_t>(of_any_alignment ? size_of(dtype) : as_it_is);
  };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned(product.aligned_b, product.dtype));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned(product.aligned_a, product.dtype));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned(product.aligned_c, product.dtype_c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned(product.aligned_c, product.dtype_c));
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle(product), &description.operation, &description.b, &description.a, &description.c,
                                     &description.c, &preference, 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  check(status, product, "choose how to multiply");
  if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return {};
  return Algorithm{result.algo, result.workspaceSize};
}

// nullopt if cuBLASLt has no algorithm. For matrices with few columns, or an odd number, it may only have one that needs no
// alignment.
std::optional<Algorithm> ask(const Product& product) {
  const std::optional<Algorithm> found = ask(product, false);
  return found ? found : ask(product, true);
}

// A query takes tens of microseconds, so answers are cached; a training step needs a few dozen.
std::optional<Algorithm> algorithm(const Product& product) {
  static std::mutex mutex;
  static std::map<Product, std::optional<Algorithm>> answers;
  const std::lock_guard lock(mutex);
  const auto known = answers.find(product);
  return known != answers.end() ? known->second : answers.emplace(product, ask(product)).first->second;
}

// Returns false, and does nothing, if cuBLASLt has no algorithm for the product.
bool run(const Product& product, const Operands& operands, GpuStream stream) {
  const std::optional<Algorithm> found = algorithm(product);
  if (!found) return false;
  Description description(product, operands.bias, operands.aux);
  const StreamMemory workspace(found->workspace, stream);
  const bool adds = operands.addend != nullptr;
  const void* const addend = adds ? operands.addend : operands.c;  // c is not read then
  const float narrow[] = {1, adds ? 1.0F : 0.0F};
  const double wide[] = {1, adds ? 1.0 : 0.0};
  const bool is_wide = product.dtype == DType::f64;
  check(cublasLtMatmul(handle(product), &description.operation, is_wide ? static_cast<const void*>(wide) : narrow,
                       operands.b, &description.b, operands.a, &description.a,
                       is_wide ? static_cast<const void*>(wide + 1) : narrow + 1, addend, &description.c, operands.c,
                       &description.c, &found->chosen, workspace.data(), found->workspace, cuda(stream)),
        product, "multiply");
  return true;
}

// y = epilogue(x weight^T).
bool multiply_by_weight(const Tensor& x, const Tensor& weight, const Operands& operands, DType dtype_y,
                        cublasLtEpilogue_t epilogue, GpuStream stream) {
  const Product product{x.rows(),
                        weight.rows(),
                        x.columns(),
                        false,
                        true,
                        x.dtype(),
                        dtype_y,
                        epilogue,
                        alignment(operands.a),
                        alignment(operands.b),
                        alignment(operands.c)};
  return run(product, operands, stream);
}

}  // namespace

void CudaKernels::gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c,
                       bool accumulate, GpuStream stream) {
  const bool turned_a = transpose_a == Transpose::yes;
  const bool turned_b = transpose_b == Transpose::yes;
  const Product product{turned_a ? a.columns() : a.rows(),
                        turned_b ? b.rows() : b.columns(),
                        turned_a ? a.rows() : a.columns(),
                        turned_a,
                        turned_b,
                        a.dtype(),
                        c.dtype(),
                        CUBLASLT_EPILOGUE_DEFAULT,
                        alignment(a.raw()),
                        alignment(b.raw()),
                        alignment(c.raw())};
  if (!run(product, {.a = a.raw(), .b = b.raw(), .c = c.raw(), .addend = accumulate ? c.raw() : nullptr}, stream)) {
    fail(ErrorCode::unavailable, "cuBLASLt has no kernel for [{}, {}] times [{}, {}] of {} into {}.", product.m, product.k,
         product.k, product.n, name(product.dtype), name(product.dtype_c));
  }
}

namespace {

// The heuristic does not take the alignment of an epilogue's pointers, and its kernels read them 16 bytes at a time.
bool fits_epilogue(const Tensor& tensor) { return alignment(tensor.raw()) == most_alignment; }

}  // namespace

// The sum is rounded once, after the bias is added. cuBLASLt has no epilogues for f64.
void CudaKernels::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, GpuStream stream) {
  const bool fused =
      x.dtype() != DType::f64 && fits_epilogue(bias) &&
      multiply_by_weight(x, weight, {x.raw(), weight.raw(), y.raw(), bias.raw()}, y.dtype(), CUBLASLT_EPILOGUE_BIAS, stream);
  if (!fused) GpuKernels::linear(x, weight, bias, y, stream);
}

// The epilogue's GELU has the tanh form, too, but NVIDIA does not document the accuracy of its tanh: it is used for bf16,
// while f32 and f16 take the library's own GELU. Rows of the epilogue's second output must begin at multiples of 16 bytes.
void CudaKernels::linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before_gelu,
                              const Tensor& y, GpuStream stream) {
  const bool fused = x.dtype() == DType::bf16 && weight.rows() % 8 == 0 && fits_epilogue(bias) &&
                     fits_epilogue(before_gelu) &&
                     multiply_by_weight(x, weight, {x.raw(), weight.raw(), y.raw(), bias.raw(), before_gelu.raw()},
                                        y.dtype(), CUBLASLT_EPILOGUE_GELU_AUX_BIAS, stream);
  if (fused) return;
  if (x.dtype() == DType::f64 || !fits_epilogue(bias))
    return GpuKernels::linear_gelu(x, weight, bias, before_gelu, y, stream);
  linear(x, weight, bias, before_gelu, stream);
  gelu_forward(before_gelu, y, stream);
}

void CudaKernels::linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                             const Tensor& y, GpuStream stream) {
  const Operands operands{.a = x.raw(), .b = weight.raw(), .c = y.raw(), .bias = bias.raw(), .addend = residual.raw()};
  const bool fused = x.dtype() != DType::f64 && fits_epilogue(bias) && alignment(residual.raw()) == alignment(y.raw()) &&
                     multiply_by_weight(x, weight, operands, y.dtype(), CUBLASLT_EPILOGUE_BIAS, stream);
  if (!fused) GpuKernels::linear_add(x, weight, bias, residual, y, stream);
}

// The same holds for GELU's derivative as for GELU in linear_gelu.
void CudaKernels::linear_backward_gelu(const Tensor& dy, const Tensor& weight, const Tensor& before_gelu, const Tensor& dx,
                                       GpuStream stream) {
  const Product product{dy.rows(),
                        weight.columns(),
                        dy.columns(),
                        false,
                        false,
                        dy.dtype(),
                        dx.dtype(),
                        CUBLASLT_EPILOGUE_DGELU,
                        alignment(dy.raw()),
                        alignment(weight.raw()),
                        alignment(dx.raw())};
  const bool fused = dy.dtype() == DType::bf16 && product.n % 8 == 0 && fits_epilogue(before_gelu) &&
                     run(product, {.a = dy.raw(), .b = weight.raw(), .c = dx.raw(), .aux = before_gelu.raw()}, stream);
  if (!fused) GpuKernels::linear_backward_gelu(dy, weight, before_gelu, dx, stream);
}

}  // namespace stretto
