#pragma once
#include <cblas.h>
#include <dnnl.h>

#include "core/lazy_library.hpp"

// oneDNN and OpenBLAS, loaded at the first matrix product that needs them. The functions that are called are listed here:
// programs do not link with one that is not.
namespace stretto {
inline constinit LazyLibrary onednn_library{"libdnnl.so.2", "Matrix products of f32, bf16 and f16"};
inline constinit LazyLibrary openblas_library{"libopenblas.so.0", "Matrix products of f64"};
}  // namespace stretto

// The classes of dnnl.hpp call oneDNN's functions by unqualified names, which they look up here first.
namespace dnnl {
#define STRETTO_ONEDNN(name) STRETTO_LAZY_FUNCTION(::stretto::onednn_library, name)
STRETTO_ONEDNN(dnnl_engine_create);
STRETTO_ONEDNN(dnnl_engine_destroy);
STRETTO_ONEDNN(dnnl_get_effective_cpu_isa);
STRETTO_ONEDNN(dnnl_matmul_desc_init);
STRETTO_ONEDNN(dnnl_memory_create);
STRETTO_ONEDNN(dnnl_memory_desc_init_by_strides);
STRETTO_ONEDNN(dnnl_memory_destroy);
STRETTO_ONEDNN(dnnl_memory_set_data_handle_v2);
STRETTO_ONEDNN(dnnl_post_ops_append_sum);
STRETTO_ONEDNN(dnnl_post_ops_append_sum_v2);
STRETTO_ONEDNN(dnnl_post_ops_create);
STRETTO_ONEDNN(dnnl_post_ops_destroy);
STRETTO_ONEDNN(dnnl_primitive_attr_create);
STRETTO_ONEDNN(dnnl_primitive_attr_destroy);
STRETTO_ONEDNN(dnnl_primitive_attr_set_post_ops);
STRETTO_ONEDNN(dnnl_primitive_create);
STRETTO_ONEDNN(dnnl_primitive_desc_destroy);
STRETTO_ONEDNN(dnnl_primitive_desc_iterator_create);
STRETTO_ONEDNN(dnnl_primitive_desc_iterator_destroy);
STRETTO_ONEDNN(dnnl_primitive_desc_iterator_fetch);
STRETTO_ONEDNN(dnnl_primitive_destroy);
STRETTO_ONEDNN(dnnl_primitive_execute);
STRETTO_ONEDNN(dnnl_set_max_cpu_isa);
STRETTO_ONEDNN(dnnl_sgemm);
STRETTO_ONEDNN(dnnl_stream_create);
STRETTO_ONEDNN(dnnl_stream_destroy);
STRETTO_ONEDNN(dnnl_stream_wait);
#undef STRETTO_ONEDNN
}  // namespace dnnl
#include <dnnl.hpp>

namespace stretto::kernels::cpu {
STRETTO_LAZY_FUNCTION(openblas_library, openblas_set_num_threads);
STRETTO_LAZY_FUNCTION(openblas_library, openblas_get_corename);
STRETTO_LAZY_FUNCTION(openblas_library, cblas_dgemm);
}  // namespace stretto::kernels::cpu
