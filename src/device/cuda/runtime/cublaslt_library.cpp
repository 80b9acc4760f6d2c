// Loads cuBLASLt at the first product on a GPU. Its 400,000 relocations take a tenth of a second, which every process would
// otherwise spend at its start, even without a GPU. The functions below have the names that the linker looks for.
#include <cublasLt.h>

#include "core/lazy_library.hpp"

namespace stretto {
namespace {

constinit LazyLibrary cublaslt{STRETTO_SONAME("cublasLt", CUBLAS_VER_MAJOR), "Matrix products on a GPU"};

}  // namespace
}  // namespace stretto

const char* cublasLtGetStatusString(cublasStatus_t status) { STRETTO_FORWARD(cublaslt, cublasLtGetStatusString, status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { STRETTO_FORWARD(cublaslt, cublasLtCreate, handle); }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, size_t size, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  STRETTO_FORWARD(cublaslt, cublasLtMatmulDescInit_internal, description, size, compute, scale);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  STRETTO_FORWARD(cublaslt, cublasLtMatmulDescSetAttribute, description, attribute, value, size);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t leading) {
  STRETTO_FORWARD(cublaslt, cublasLtMatrixLayoutInit_internal, layout, size, type, rows, columns, leading);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t size) {
  STRETTO_FORWARD(cublaslt, cublasLtMatmulPreferenceInit_internal, preference, size);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t size) {
  STRETTO_FORWARD(cublaslt, cublasLtMatmulPreferenceSetAttribute, preference, attribute, value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  STRETTO_FORWARD(cublaslt, cublasLtMatmulAlgoGetHeuristic, handle, operation, a, b, c, d, preference, wanted, results,
                  found);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* c, cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  STRETTO_FORWARD(cublaslt, cublasLtMatmul, handle, operation, alpha, a, layout_a, b, layout_b, beta, c, layout_c, d,
                  layout_d, algorithm, workspace, workspace_bytes, stream);
}
