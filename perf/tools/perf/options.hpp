#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/buffers.hpp"
#include "perf/cases.hpp"
#include "perf/measure.hpp"
#include "stretto/device.hpp"

namespace perf {

// The command line, with nccl-tests' names for the options that nccl-tests has.
struct Options {
  std::vector<const Test*> tests;
  bool every_test = false;  // "all": combinations that cannot be done are left out with a comment instead of an error
  std::int64_t min_bytes = 32 << 20, max_bytes = 32 << 20;
  std::int64_t step_bytes = 0;  // 0: use step_factor
  double step_factor = 2;
  int iterations = 20, warmup = 5, cycles = 1;
  double seconds = 0;           // above 0: the number of iterations that last about that long, instead of `iterations`
  double least_seconds = 1e-3;  // of a loop; 0 if -n is given
  std::vector<stretto::DType> dtypes = {stretto::DType::f32};
  std::vector<stretto::ReduceOp> ops = {stretto::ReduceOp::sum};
  int root = 0;
  bool every_root = false;
  bool check = true;
  Over over = Over::mean;
  std::vector<stretto::Method> methods = {stretto::Algorithm::automatic};
  bool every_algorithm = false;
  bool out_of_place = true, in_place = true;
  stretto::Device device = stretto::Device::cpu;
  Memory memory = Memory::symmetric;  // on a GPU always the GPU's
  int copies = 0;                     // 0: several if they are small
  bool prepared = false;
  std::vector<std::string> peers;
  std::uint64_t seed = 1;
  std::string json;
  int servers = 0;  // the last ranks, which have no vector
  int nproc = 0;    // ranks to start; 0: a launcher has started this one
  bool threads = false;
  bool deterministic = false;
  std::string ranks_per_node;          // the value of STRETTO_RANKS_PER_NODE; empty: nodes are hosts
  stretto::Quantization quantization;  // for Stretto only; peers do not quantize
  std::string command;                 // as given

  std::vector<std::int64_t> sizes() const;
  bool is_quantized() const { return quantization.format != stretto::QuantizedFormat::none; }
  bool has_peer(const std::string& name) const;
  // Throws in one sentence if the options do not fit this number of ranks.
  void check_for(int ranks) const;
};

// Returns nullopt if the command line asks for help, which has then been printed. Throws Error(invalid_argument) in one
// sentence.
std::optional<Options> parse_command_line(int argc, char** argv);

const char* name_of(Memory memory);
const char* name_of(stretto::ReduceOp op);  // nccl-tests' names: premul_sum is mulsum there

}  // namespace perf
