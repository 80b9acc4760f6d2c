#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/export.hpp"
#include "stretto/planning/simulate.hpp"

// The machine that a layout is planned for, and the program that trains on it, as data.
namespace stretto {

// A product of an m x k and a k x n matrix has the size n' if it has as many operations as one of n' x n' x n':
// n' = cbrt(m n k). A batch of products counts as one product of all operations.
struct ProductRate {
  double size = 0;
  double flops_per_second = 0;
};

// Groups of `ranks` consecutive ranks share cores: at most `cores` of a group's ranks compute at full speed at a time; if
// more compute, they get equal parts of the time.
struct SharedCores {
  int ranks = 1, cores = 1;
};

// In JSON:
//   {"peak_tflops": 312,                         of a device, which MFU is counted against
//    "products": {"bf16": [[512, 22], [8192, 238]]},   by type (fp64, fp32, bf16, fp16): sizes, and 1e12 operations a second
//    "attention_tflops": 120,                    of the attention kernel; 1e12 operations a second
//    "memory_gbs": 2000,                         of elementwise work, in 1e9 bytes a second, read and written
//    "memory_gib": 80,                           of a device
//    "file_gbs": 1.5,                            of a device's scratch files, read and written; default 0: not known
//    "launch_us": 4,                             of a kernel's start and end; default 0
//    "shared_cores": {"ranks": 4, "cores": 2},   default: no rank shares its cores
//    "narrow_sums": true,                        sums of 16-bit floats travel in 16 bits (NCCL), not in 32; default false
//    "gpus": true,                               the devices are GPUs; default false: see default_system()
//    "links": {"levels": [...], "local_gbs": 2000},   as in simulate.hpp
//     "sources": ["where the figures are from"]}  optional; not used
struct STRETTO_API TrainingCluster {
  double peak_flops = 0;
  std::map<DType, std::vector<ProductRate>> products;  // by rising size, at least one of a type
  double attention_flops = 0;
  double memory_bytes_per_second = 0;
  std::int64_t memory_bytes = 0;
  double file_bytes_per_second = 0;  // 0: layouts with state in files cannot be predicted
  double launch_seconds = 0;
  SharedCores shared_cores;
  bool narrow_sums = false;
  bool gpus = false;
  LinkModel links;

  // The factor by which a computation takes longer if all ranks that share its cores compute, in a job of `ranks` ranks.
  double turns(std::int64_t ranks) const;
  // Between two sizes of the curve, the rate is linear in the logarithm of the size. Above the largest size the rate is
  // constant. Below the smallest it is proportional to the operations: start-up dominates. Throws Error(invalid_argument) if
  // the type has no curve.
  double product_rate(DType dtype, double size) const;
  // The time of a batch of products: that of the operations at the rate of their size, or of the operands and other_bytes at
  // the rate of the memory, whichever is longer; plus a launch; plus the time to write the results beyond those of a square
  // product of that size, which a short inner dimension does not hide.
  double product_seconds(DType dtype, double m, double n, double k, double batch = 1, double other_bytes = 0) const;
  double pass_seconds(double bytes, double kernels = 1) const {
    return bytes / memory_bytes_per_second + kernels * launch_seconds;
  }
};
// Both throw Error(invalid_argument) in one sentence that names the fault.
STRETTO_API TrainingCluster training_cluster_from_text(const std::string& json);
STRETTO_API TrainingCluster training_cluster_from_file(const std::string& path);
STRETTO_API std::string to_text(const TrainingCluster& cluster);  // in the form that training_cluster_from_text() reads

// The tensors that the kernels of a block other than products read or write: how many of each shape.
struct BlockTraffic {
  double rows = 0;     // [own rows, hidden]
  double wide = 0;     // [tokens, hidden / t]
  double scores = 0;   // [batch, heads / t, sequence, sequence]
  double kernels = 0;  // the number of these kernels
};

// The properties of a training program that decide the time of its step. The defaults are this library's trainer, where
// everything that may overlap does; default_system() says less of GPUs.
//
// In JSON, all keys optional: {"kernels": {"forward": {"rows": 11, "wide": 16, "scores": 4.5, "kernels": 9}, "backward":
// {...}, "attention": {...}}, "recomputes_whole_blocks": true, "overlaps_products": false, "overlaps_weights": false,
// "overlaps_attention": false, "hidden_sums": 0, "hidden_sums_between": 0, "blocking_messages": true, "accumulate_bytes": 6,
// "update_bytes": 62, "loss_bytes": 52}.
struct TrainingSystem {
  // True for a program whose attention is not one kernel but products and kernels that write the scores to memory. forward
  // and backward are then the traffic of a block, and `attention` that of the part of forward that Recompute::selective
  // computes again (with its products; Korthikanti et al. 2022) instead of norms and GELU.
  bool writes_scores = false;
  BlockTraffic forward, backward, attention;
  bool recomputes_whole_blocks = false;  // with Recompute::full: the last projection, too, which this library leaves out
  // A tensor-parallel exchange runs, in chunks, beside the product before or after it.
  bool overlaps_products = true;
  // The exchange of an input's gradient runs beside the product for the weights' gradient.
  bool overlaps_weights = true;
  // The messages of attention over divided sequences run beside attention, as attention_cost.hpp has it.
  bool overlaps_attention = true;
  // The fraction, 0 to 1, that is hidden of the time that could be: of gradient sums during backward, and of gathers of
  // values during forward. hidden_sums_between: for groups with one rank on each of several nodes, whose sums wait for the
  // network only; nullopt: hidden_sums.
  double hidden_sums = 1;
  std::optional<double> hidden_sums_between;
  bool blocking_messages = false;  // a stage waits for each message to or from another stage
  double accumulate_bytes = 0;     // of each weight and microbatch, where a pass of its own adds gradients up
  double update_bytes = 0;         // of each updated parameter, norm and update; 0: this library's (update_bytes())
  double loss_bytes = 0;           // of each logit, forward and backward; 0: three times its type's
};
STRETTO_API TrainingSystem training_system_from_text(const std::string& json);  // both functions throw like the above
STRETTO_API TrainingSystem training_system_from_file(const std::string& path);
// This library's trainer, as far as it is known. On hosts everything overlaps that may. On GPUs its steps are not measured,
// so that only the overlap is taken which a published program had when its steps were predicted well: an exchange of an
// input's gradient runs beside the product for the weights' gradient; all other communication blocks.
STRETTO_API TrainingSystem default_system(const TrainingCluster& cluster);

}  // namespace stretto
