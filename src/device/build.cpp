#include "stretto/build.hpp"

#include <dnnl_version.h>

#include "core/fail.hpp"

namespace stretto {

std::string build_version() { return STRETTO_VERSION; }

std::vector<std::pair<std::string, std::string>> build_parts() {
  return {{"oneDNN", fmt::format("{}.{}.{}", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH)},
          {"OpenBLAS", STRETTO_OPENBLAS_VERSION},
          {"Highway", STRETTO_HIGHWAY_VERSION},
          {"UCX", STRETTO_UCX_VERSION},
          {"CUDA", STRETTO_CUDA_VERSION},
          {"NCCL", STRETTO_NCCL_VERSION},
          {"cuDNN", STRETTO_CUDNN_VERSION}};
}

}  // namespace stretto
