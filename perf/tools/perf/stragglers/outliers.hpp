#pragma once
#include <string>
#include <vector>

namespace perf {

// The measured rates of one rank.
struct RankRates {
  std::string host;
  int node = 0;
  double products = 0;  // FLOP/s of its matrix products
  double memory = 0;    // bytes/s of its copies
  // To every other rank, both ways at the same time; 0 to itself.
  std::vector<double> bandwidth;  // bytes/s
  std::vector<double> latency;    // seconds of an exchange of 8 bytes
};

// One sentence for each rank, and each link, that is slower than the median of its kind by more than `threshold`, a share.
// Links inside nodes and between nodes are two kinds. A rank whose links are mostly slow is named instead of them. Latencies
// scatter more: they are judged by four times the threshold.
std::vector<std::string> outliers(const std::vector<RankRates>& ranks, double threshold);

}  // namespace perf
