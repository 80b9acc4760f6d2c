#pragma once
#include <string>
#include <vector>

#include "parity.hpp"

// Trainings whose state, gradients and values lie in files.
namespace parity::offload {

inline TrainingOptions offloaded(TrainingOptions options, const std::string& directory, double ratio = 0) {
  options.sharding.offload.optimizer = {directory, ratio};
  return options;
}

struct OffloadCell {
  Layout layout;
  ZeroStage zero;
  OptimizerOptions optimizer = AdamW::Options();
  DType dtype = DType::f32;
  int hpz_size = 1;
  QuantizedFormat qwz = QuantizedFormat::none, qgz = QuantizedFormat::none;
};

inline TrainingOptions options_of(const OffloadCell& cell) {
  TrainingOptions options = tiny(cell.layout, cell.dtype);
  options.sharding.zero = cell.zero;
  options.optimizer = cell.optimizer;
  options.sharding.hpz_size = cell.hpz_size;
  options.sharding.qwz = cell.qwz;
  options.sharding.qgz = cell.qgz;
  options.sharding.unit_bytes = std::size_t{8} << 10;
  return options;
}

// Values, gradients and state, each with a share that stays in memory.
inline TrainingOptions in_files(TrainingOptions options, const std::string& directory, const std::vector<double>& ratios) {
  const auto at = [&](double ratio) {
    return ratio < 1 ? ShardedParameters::Options::InFile{directory, ratio} : ShardedParameters::Options::InFile{};
  };
  options.sharding.offload = {.optimizer = at(ratios[0]), .gradients = at(ratios[1]), .values = at(ratios[2])};
  return options;
}

}  // namespace parity::offload
