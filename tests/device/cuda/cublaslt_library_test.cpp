// Finds out without a GPU whether the library has every function that products call.
#if defined(STRETTO_HAVE_CUDA)
#include <cublasLt.h>
#include <gtest/gtest.h>

#include "stretto/error.hpp"

namespace {

TEST(CublasLt, HasWhatProductsCall) {
  EXPECT_STREQ(cublasLtGetStatusString(CUBLAS_STATUS_SUCCESS), "success");
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t layout;
  cublasLtMatmulPreferenceOpaque_t preference;
  EXPECT_EQ(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatrixLayoutInit(&layout, CUDA_R_32F, 4, 4, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t turned = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned),
            CUBLAS_STATUS_SUCCESS);
  const std::uint64_t bytes = 1 << 20;
  EXPECT_EQ(
      cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
      CUBLAS_STATUS_SUCCESS);
  // Both functions are found, and refuse a null handle.
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  EXPECT_NE(cublasLtMatmulAlgoGetHeuristic(nullptr, &operation, &layout, &layout, &layout, &layout, &preference, 1, &result,
                                           &found),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(cublasLtMatmul(nullptr, &operation, nullptr, nullptr, &layout, nullptr, &layout, nullptr, nullptr, &layout,
                           nullptr, &layout, nullptr, nullptr, 0, nullptr),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(cublasLtCreate(nullptr), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
#endif
