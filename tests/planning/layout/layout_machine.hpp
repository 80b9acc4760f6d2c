#pragma once
#include "stretto/planning/training_cluster.hpp"

namespace stretto {

// 1e12 operations a second whatever the size, 2e12 in attention; memory takes no time, and links have no latency.
inline TrainingCluster machine_without_memory_time(double bytes_per_second = 1e9) {
  TrainingCluster cluster;
  cluster.peak_flops = 2e12;
  for (const DType dtype : {DType::f32, DType::bf16}) cluster.products[dtype] = {{1, 1e12}};
  cluster.attention_flops = 2e12;
  cluster.memory_bytes_per_second = 1e30;
  cluster.memory_bytes = std::int64_t{1} << 40;
  cluster.links = {{{"all", 0, 0, 0, bytes_per_second * 1e-9}}, 1e21};
  return cluster;
}

}  // namespace stretto
