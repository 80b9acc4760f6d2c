// Fused attention by cuDNN, on tensor cores. Strides describe the layout of q, k and v, so nothing is copied. cuDNN's
// statistics are the natural log-sum-exp of the scaled scores, like the library's.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/cuda/attention/attention.hpp"
#include "device/cuda/runtime/relaxed_capture.hpp"
#include "device/cuda/runtime/stream_memory.hpp"
#include "stretto/settings.hpp"

namespace stretto::attention {
namespace {

namespace fe = cudnn_frontend;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pointers = std::unordered_map<std::int64_t, void*>;

// The tensors of attention, as cuDNN's numbers of them.
enum Role : std::int64_t { Q = 1, K, V, O, STATS, DO, DQ, DK, DV };

// The work of one call: some heads of some sequences, which may be a part of the tensors.
struct Part {
  DType dtype;
  std::int64_t batch, heads, sequence, head_size;
  std::int64_t all_heads;  // heads of a token in memory
  bool backward, aligned;
  bool in_fixed_order = false;  // of backward's sums
  auto operator<=>(const Part&) const = default;
};

// A graph in cuDNN's sense. null: cuDNN refuses, which has been logged.
struct Plan {
  std::unique_ptr<fe::graph::Graph> graph;
  std::int64_t workspace = 0;
};

fe::DataType_t cudnn_type(DType dtype) { return dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16; }

TensorPointer tensor(fe::graph::Graph& graph, Role role, const std::vector<std::int64_t>& dimensions,
                     const std::vector<std::int64_t>& strides, fe::DataType_t type) {
  return graph.tensor(
      fe::graph::Tensor_attributes().set_uid(role).set_dim(dimensions).set_stride(strides).set_data_type(type));
}

void give(const TensorPointer& tensor, Role role, const std::vector<std::int64_t>& dimensions,
          const std::vector<std::int64_t>& strides, fe::DataType_t type) {
  tensor->set_output(true).set_uid(role).set_dim(dimensions).set_stride(strides).set_data_type(type);
}

std::unique_ptr<fe::graph::Graph> described(const Part& part) {
  const std::int64_t row = part.all_heads * part.head_size;
  const std::vector<std::int64_t> dimensions{part.batch, part.heads, part.sequence, part.head_size};
  const std::vector<std::int64_t> of_three{part.sequence * 3 * row, part.head_size, 3 * row, 1};
  const std::vector<std::int64_t> of_one{part.sequence * row, part.head_size, row, 1};
  const std::vector<std::int64_t> rows{part.batch, part.heads, part.sequence, 1};
  const std::vector<std::int64_t> of_rows{part.heads * part.sequence, part.sequence, 1, 1};
  const float scale = 1 / std::sqrt(static_cast<float>(part.head_size));
  const fe::DataType_t type = cudnn_type(part.dtype);

  auto result = std::make_unique<fe::graph::Graph>();
  fe::graph::Graph& graph = *result;
  graph.set_io_data_type(type)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const TensorPointer q = tensor(graph, Q, dimensions, of_three, type);
  const TensorPointer k = tensor(graph, K, dimensions, of_three, type);
  const TensorPointer v = tensor(graph, V, dimensions, of_three, type);
  if (!part.backward) {
    const auto [o, stats] = graph.sdpa(q, k, v,
                                       fe::graph::SDPA_attributes()
                                           .set_name("attention_forward")
                                           .set_generate_stats(true)
                                           .set_attn_scale(scale)
                                           .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                           .set_diagonal_band_right_bound(0));
    give(o, O, dimensions, of_one, type);
    give(stats, STATS, rows, of_rows, fe::DataType_t::FLOAT);
    return result;
  }
  const TensorPointer o = tensor(graph, O, dimensions, of_one, type);
  const TensorPointer d_o = tensor(graph, DO, dimensions, of_one, type);
  const TensorPointer stats = tensor(graph, STATS, rows, of_rows, fe::DataType_t::FLOAT);
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, d_o, stats,
                                                fe::graph::SDPA_backward_attributes()
                                                    .set_name("attention_backward")
                                                    .set_attn_scale(scale)
                                                    .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                                    .set_diagonal_band_right_bound(0)
                                                    .set_deterministic_algorithm(part.in_fixed_order));
  give(dq, DQ, dimensions, of_three, type);
  give(dk, DK, dimensions, of_three, type);
  give(dv, DV, dimensions, of_three, type);
  return result;
}

// The reason why cuDNN refuses; empty if it does not.
std::string obstacle(const Part& part, cudnnHandle_t handle, Plan& plan) {
  if (!part.aligned) return "its tensors do not begin at multiples of 16 bytes";
  try {
    plan.graph = described(part);
    fe::error_t result = plan.graph->build(handle, {fe::HeurMode_t::A});
    if (result.is_good()) result = plan.graph->get_workspace_size(plan.workspace);
    return result.is_good() ? "" : result.get_message();
  } catch (const std::exception& error) {
    return error.what();
  }
}

// cuDNN's handle and the plans made with it. One thread uses them at a time, for the microseconds of putting a call into a
// stream. Never destroyed: captured graphs need the plans, and at exit the driver may shut down first.
class Cudnn {
 public:
  static Cudnn& instance() {
    static Cudnn& made = *new Cudnn;
    return made;
  }

  bool takes(const Part& part) {
    const std::lock_guard lock(mutex_);
    return plan(part).graph != nullptr;
  }

  void run(const Part& part, Pointers& pointers, GpuStream stream) {
    const std::lock_guard lock(mutex_);
    const Plan& made = plan(part);
    const StreamMemory workspace(static_cast<std::size_t>(made.workspace), stream);
    const cudnnStatus_t status = cudnnSetStream(handle_, cuda(stream));
    if (status != CUDNN_STATUS_SUCCESS)
      fail(ErrorCode::unavailable, "cuDNN could not take a stream: {}.", cudnnGetErrorString(status));
    fe::error_t result = made.graph->execute(handle_, pointers, workspace.data());
    if (result.is_bad()) {
      fail(ErrorCode::unavailable, "cuDNN could not attend over {} sequences of {} tokens with {} heads of {} elements: {}.",
           part.batch, part.sequence, part.heads, part.head_size, result.get_message());
    }
  }

 private:
  Cudnn() {
    const RelaxedCapture relaxed;
    const cudnnStatus_t status = cudnnCreate(&handle_);
    if (status != CUDNN_STATUS_SUCCESS)
      fail(ErrorCode::unavailable, "cuDNN could not start: {}.", cudnnGetErrorString(status));
  }

  Plan& plan(const Part& part) {
    const auto known = plans_.find(part);
    if (known != plans_.end()) return known->second;
    const RelaxedCapture relaxed;
    Plan made;
    const std::string reason = obstacle(part, handle_, made);
    if (!reason.empty()) {
      made.graph.reset();
      log().info(
          "Attention {} over {} sequences of {} tokens with {} heads of {} elements of {} takes the library's own kernels: "
          "{}",
          part.backward ? "backward" : "forward", part.batch, part.sequence, part.heads, part.head_size, name(part.dtype),
          reason);
    }
    return plans_.emplace(part, std::move(made)).first->second;
  }

  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Part, Plan> plans_;
};

bool aligned(std::initializer_list<const void*> pointers) {
  std::uintptr_t all = 0;
  for (const void* pointer : pointers) all |= reinterpret_cast<std::uintptr_t>(pointer);
  return all % 16 == 0;
}

void* element(const Tensor& tensor, std::int64_t at) {
  return static_cast<std::byte*>(tensor.raw()) + static_cast<std::size_t>(at) * size_of(tensor.dtype());
}

std::int64_t largest_divisor(std::int64_t number, std::int64_t most) {
  std::int64_t divisor = std::min(number, most);
  while (number % divisor != 0) --divisor;
  return divisor;
}

// In a fixed order (STRETTO_DETERMINISTIC), cuDNN needs the whole matrix of scores in its workspace to sum the gradient of
// queries (on Hopper; two bytes for each score). Backward then processes the heads in parts, to bound the workspace.
constexpr std::int64_t most_score_bytes = std::int64_t{1} << 30;
constexpr std::int64_t longest_backward = 32768;  // 2 GiB for one head

Part backward_part(const kernels::AttentionShape& shape, DType dtype, bool is_aligned) {
  Part part{dtype, shape.batch, shape.heads, shape.sequence, shape.head_size, shape.heads, true, is_aligned};
  part.in_fixed_order = setting("STRETTO_DETERMINISTIC") == "1";
  if (!part.in_fixed_order) return part;
  const std::int64_t padded = (shape.sequence + 127) / 128 * 128;
  const std::int64_t fitting = std::max<std::int64_t>(1, most_score_bytes / (2 * padded * padded));
  if (fitting >= shape.batch * shape.heads) return part;
  part.batch = fitting >= shape.heads ? largest_divisor(shape.batch, fitting / shape.heads) : 1;
  part.heads = largest_divisor(shape.heads, fitting);
  // The statistics of each part must begin at a multiple of 16 bytes, like all of cuDNN's tensors.
  part.aligned = part.aligned && shape.sequence % 4 == 0;
  return part;
}

}  // namespace

bool cudnn_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                   GpuStream stream) {
  const Part part{qkv.dtype(),     shape.batch, shape.heads, shape.sequence,
                  shape.head_size, shape.heads, false,       aligned({qkv.raw(), out.raw(), log_sum_exp.raw()})};
  if (!Cudnn::instance().takes(part)) return false;
  const std::int64_t hidden = shape.heads * shape.head_size;
  Pointers pointers{
      {Q, qkv.raw()}, {K, element(qkv, hidden)}, {V, element(qkv, 2 * hidden)}, {O, out.raw()}, {STATS, log_sum_exp.raw()}};
  Cudnn::instance().run(part, pointers, stream);
  return true;
}

bool cudnn_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                    const Tensor& dout, const Tensor& dqkv, GpuStream stream) {
  const Part part =
      backward_part(shape, qkv.dtype(), aligned({qkv.raw(), out.raw(), log_sum_exp.raw(), dout.raw(), dqkv.raw()}));
  if (part.in_fixed_order && shape.sequence > longest_backward) return false;
  if (!Cudnn::instance().takes(part)) return false;
  const std::int64_t hidden = shape.heads * shape.head_size;
  for (std::int64_t batch = 0; batch < shape.batch; batch += part.batch) {
    for (std::int64_t head = 0; head < shape.heads; head += part.heads) {
      const std::int64_t token = batch * shape.sequence;
      const std::int64_t of_three = token * 3 * hidden + head * shape.head_size;
      const std::int64_t of_one = token * hidden + head * shape.head_size;
      Pointers pointers{{Q, element(qkv, of_three)},
                        {K, element(qkv, of_three + hidden)},
                        {V, element(qkv, of_three + 2 * hidden)},
                        {O, element(out, of_one)},
                        {DO, element(dout, of_one)},
                        {STATS, element(log_sum_exp, (batch * shape.heads + head) * shape.sequence)},
                        {DQ, element(dqkv, of_three)},
                        {DK, element(dqkv, of_three + hidden)},
                        {DV, element(dqkv, of_three + 2 * hidden)}};
      Cudnn::instance().run(part, pointers, stream);
    }
  }
  return true;
}

}  // namespace stretto::attention
