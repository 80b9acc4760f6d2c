#include "perf/run.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "common/fail.hpp"
#include "perf/buffers.hpp"
#include "perf/kernel_reads.hpp"
#include "perf/operation.hpp"
#include "perf/peers/peer.hpp"
#include "perf/result.hpp"
#include "perf/values.hpp"

namespace perf {

using stretto::Algorithm;
using stretto::Communicator;
using stretto::Method;
using stretto::ReduceOp;

namespace {

// Throws if the method cannot do that kind of test.
void check_method(const Communicator& world, const Case& empty, const Method& method,
                  const stretto::Quantization& quantization) {
  // A call without bytes, in the device's memory.
  const stretto::Tensor somewhere({1}, stretto::DType::u8);
  const auto& known = algorithms_for(empty.test->collective);
  std::vector<const char*> names;
  names.reserve(known.size());
  for (const Algorithm algorithm : known) names.push_back(name(algorithm));
  require(method.algorithm == Algorithm::automatic || method.algorithm == Algorithm::nccl ||
              stretto::can_do(empty.test->collective, method.algorithm),
          "{} cannot be done by {}; choose {}.", empty.test->name, to_string(method), fmt::join(names, " or "));
  method_of(world, empty, method, somewhere.raw(), somewhere.raw(), quantization);
}

class TestRun {
 public:
  TestRun(const Communicator& world, const Options& options)
      : world_(world), options_(options), table_(options), machine_(this_machine(world)) {
    for (const std::string& name : options.peers) {
      peers_.push_back(make_peer(name, world, options.threads));
      machine_.peers.push_back(fmt::format("{} ({})", name, peers_.back()->version()));
    }
  }

  void run() {
    if (rank0()) table_.header(machine_);
    for (const Test* test : options_.tests) {
      if (options_.every_test) say(test->name);
      if (rank0()) table_.columns();
      if (is_ring_exchange(*test) && world_.size() < 2) {
        say("left out: it needs 2 ranks or more");
        continue;
      }
      if (options_.prepared && !can_be_prepared(*test)) {
        say("left out: it cannot be prepared");
        continue;
      }
      if (options_.is_quantized() && !can_be_quantized(test->collective)) {
        say("left out: it cannot be quantized");
        continue;
      }
      for (const stretto::DType dtype : types_of(*test)) {
        for (const ReduceOp op : operators_of(*test)) {
          for (const int root : roots_of(*test)) sweep(*test, dtype, op, root);
        }
      }
    }
    if (!rank0()) return;
    table_.footer();
    if (!options_.json.empty()) write_json(options_.json, machine_, options_, rows_);
    if (table_.wrong() > 0) {
      fail(stretto::ErrorCode::internal, "{} values are wrong; the columns #wrong show the rows.", table_.wrong());
    }
  }

 private:
  bool rank0() const { return world_.rank() == 0; }
  void say(const std::string& sentence) const {
    if (rank0()) table_.comment(sentence);
  }

  // A barrier moves no bytes and has one row.
  std::vector<stretto::DType> types_of(const Test& test) const {
    return test.collective == stretto::Collective::barrier ? std::vector{options_.dtypes.front()} : options_.dtypes;
  }
  std::vector<ReduceOp> operators_of(const Test& test) const {
    return reduces(test.collective) ? options_.ops : std::vector{ReduceOp::sum};
  }
  std::vector<int> roots_of(const Test& test) const {
    if (!has_root(test.collective)) return {0};
    if (!options_.every_root) return {options_.root};
    std::vector<int> roots(world_.size());
    std::iota(roots.begin(), roots.end(), 0);
    return roots;
  }
  std::vector<std::int64_t> sizes_of(const Test& test) const {
    return test.collective == stretto::Collective::barrier ? std::vector<std::int64_t>{0} : options_.sizes();
  }

  bool has_nodes(Algorithm algorithm) const {
    const std::vector<int>& nodes = world_.nodes();
    const bool several = std::any_of(nodes.begin(), nodes.end(), [](int node) { return node > 0; });
    if (!several) say(fmt::format("{} is left out: all ranks are on one node", name(algorithm)));
    return several;
  }
  std::vector<Method> quantizing_methods_of(const Test& test) const {
    std::vector<Method> methods;
    for (const Algorithm algorithm : algorithms_for(test.collective)) {
      if (!quantizes(test.collective, algorithm)) continue;
      if (needs_nodes(algorithm) && !has_nodes(algorithm)) continue;
      methods.emplace_back(algorithm);
    }
    return methods;
  }
  std::vector<Method> methods_of(const Test& test) const {
    if (!options_.every_algorithm) return options_.methods;
    if (options_.is_quantized()) return quantizing_methods_of(test);
    std::vector<Method> methods;
    std::vector<Method> by_level;
    const bool on_gpu = options_.device == stretto::Device::cuda;
    if (on_gpu) methods.emplace_back(Algorithm::nccl);
    for (const Algorithm algorithm : algorithms_for(test.collective)) {
      if (needs_nodes(algorithm) || (on_gpu && shares_memory(algorithm))) continue;
      methods.emplace_back(algorithm);
      if (shares_memory(algorithm)) continue;  // cannot be a part of two levels
      by_level.emplace_back(Algorithm::two_level);
      by_level.back().inside = by_level.back().between = algorithm;
    }
    const bool has_levels = stretto::can_do(test.collective, Algorithm::two_level);
    if (has_levels && has_nodes(Algorithm::two_level)) methods.insert(methods.end(), by_level.begin(), by_level.end());
    return methods;
  }

  // If one collective and its methods are named, check_methods() has thrown already. Among "all", a row is left out.
  bool can(const Case& empty, const Method& method) const {
    try {
      check_method(world_, empty, method, quantization_of(*empty.test));
      return true;
    } catch (const stretto::Error& error) {
      say(fmt::format("{} is left out: {}", to_string(method), error.what()));
      return false;
    }
  }

  // Sizes grow: a method that is impossible at one size is impossible at the sizes that follow.
  void leave_out_impossible(const Case& test_case, std::vector<Method>& methods) const {
    const Reach reach{options_.threads || options_.memory == Memory::symmetric, ranks_read_each_other(world_)};
    const Buffers buffers(test_case, world_.rank(), false, 1, options_.memory);
    const auto impossible = [&](const Method& method) {
      const std::string why = obstacle_to(world_, test_case, method, buffers, reach, quantization_of(*test_case.test));
      if (!why.empty()) say(fmt::format("{} is left out from {} bytes on: {}", to_string(method), test_case.bytes(), why));
      return !why.empty();
    };
    methods.erase(std::remove_if(methods.begin(), methods.end(), impossible), methods.end());
  }

  stretto::Quantization quantization_of(const Test& test) const {
    stretto::Quantization quantization = options_.quantization;
    if (test.collective != stretto::Collective::all_reduce) quantization.result = stretto::QuantizedFormat::none;
    return quantization;
  }

  void sweep(const Test& test, stretto::DType dtype, ReduceOp op, int root) {
    const auto case_of = [&](std::int64_t bytes) {
      return Case::of_bytes(test, world_.size() - options_.servers, root, dtype, op, bytes, options_.servers);
    };
    const Values values(case_of(0), options_.seed, quantization_of(test));
    std::vector<Method> methods = methods_of(test);
    const auto impossible = [&](const Method& method) { return !can(case_of(0), method); };
    methods.erase(std::remove_if(methods.begin(), methods.end(), impossible), methods.end());
    for (const std::int64_t bytes : sizes_of(test)) {
      const Case test_case = case_of(bytes);
      if (options_.every_algorithm) leave_out_impossible(test_case, methods);
      std::vector<Row> rows;
      rows.reserve(methods.size());
      for (const Method& method : methods) {
        rows.push_back({test_case, "", method.algorithm == Algorithm::automatic, {}, {}});
      }
      if (options_.out_of_place) place(test_case, values, methods, false, rows);
      if (options_.in_place && can_be_in_place(test)) place(test_case, values, methods, true, rows);
      for (const Row& row : rows) {
        if (rank0()) table_.row(row);
        rows_.push_back(row);
      }
    }
  }

  // Checks each method and each peer, then times them in turn, and enters the results into the rows.
  void place(const Case& test_case, const Values& values, const std::vector<Method>& methods, bool in_place,
             std::vector<Row>& rows) {
    const Buffers buffers(test_case, world_.rank(), in_place, copies_of(test_case), options_.memory);
    std::vector<Contender> contenders;
    contenders.reserve(methods.size() + peers_.size());
    for (const Method& method : methods) {
      contenders.push_back(
          {action_of(world_, test_case, method, buffers, options_.prepared, quantization_of(*test_case.test))});
    }
    for (const auto& peer : peers_) {
      contenders.push_back({});
      if (!peer->can(test_case, in_place)) continue;
      contenders.back().action = repeated(buffers.copies(), [&, in_place](int copy) {
        peer->perform(test_case, in_place, buffers.input(copy), buffers.output(copy));
      });
    }
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      check(buffers, values, contenders[i]);
      if (i >= methods.size()) {
        drop_if_wrong(test_case, in_place, *peers_[i - methods.size()], contenders[i]);
      } else {
        rows[i].algorithm =
            method_of(world_, test_case, methods[i], buffers.input(0), buffers.output(0), quantization_of(*test_case.test));
      }
    }
    for (int cycle = 0; cycle < options_.cycles; ++cycle) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        time(buffers, values, contenders[i]);
        if (i >= methods.size()) drop_if_wrong(test_case, in_place, *peers_[i - methods.size()], contenders[i]);
      }
    }
    enter(contenders, in_place, rows);
  }

  struct Contender {
    Action action;  // empty: it lacks this collective, or its results were wrong
    std::int64_t wrong = 0;
    Deviation deviation = {};  // of this rank's results from the exact ones
    std::vector<Timing> timings = {};
    stretto::Traffic traffic = {};  // one operation of this rank
  };

  // A peer with wrong results is not compared. All ranks know of it and leave the peer out together.
  void drop_if_wrong(const Case& test_case, bool in_place, const Peer& peer, Contender& contender) const {
    if (!contender.action || contender.wrong == 0) return;
    contender.action = nullptr;
    const std::string reduction = reduces(test_case.test->collective) ? fmt::format(", {}", name_of(test_case.op)) : "";
    say(fmt::format("{} gave {} wrong values in {} of {}{}, {} bytes, {}, and is left out there", peer.name(),
                    contender.wrong, test_case.test->name, name(test_case.dtype), reduction, test_case.bytes(),
                    in_place ? "in place" : "out of place"));
  }

  void enter(const std::vector<Contender>& contenders, bool in_place, std::vector<Row>& rows) const {
    std::vector<std::optional<Timing>> peers;
    for (std::size_t i = rows.size(); i < contenders.size(); ++i) {
      const Contender& peer = contenders[i];
      peers.push_back(peer.action ? std::optional(typical(peer.timings)) : std::nullopt);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Placement placement{typical(contenders[i].timings), std::nullopt, peers};
      if (options_.check) placement.wrong = contenders[i].wrong;
      const Contender& done = contenders[i];
      placement.wire_bytes = static_cast<std::int64_t>(most_over_ranks(static_cast<double>(done.traffic.bytes_sent)));
      placement.wire_bytes_inter =
          static_cast<std::int64_t>(most_over_ranks(static_cast<double>(done.traffic.bytes_between_nodes)));
      const double most = most_over_ranks(done.deviation.most);
      const std::vector<double> squares = to_rank0(world_, done.deviation.squares);
      const std::vector<double> all = to_rank0(world_, static_cast<double>(done.deviation.elements));
      const double elements = std::accumulate(all.begin(), all.end(), 0.0);
      if (elements > 0) {
        placement.max_error = most;
        placement.rms_error = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0) / elements);
      }
      (in_place ? rows[i].in_place : rows[i].out_of_place) = placement;
    }
  }

  // Unless --copies is given: several copies of buffers that are small beside the machine's memory.
  int copies_of(const Case& test_case) const {
    if (options_.copies > 0) return options_.copies;
    constexpr std::int64_t most_bytes = 16 << 20;
    constexpr std::int64_t most_copies = 8;
    const std::int64_t fit = most_bytes / std::max<std::int64_t>(1, 2 * test_case.bytes());
    const std::int64_t used = options_.seconds > 0 ? most_copies : std::min<std::int64_t>(most_copies, options_.iterations);
    return static_cast<int>(std::clamp<std::int64_t>(fit, 1, used));
  }

  // Runs once on each copy, all ranks together.
  void check(const Buffers& buffers, const Values& values, Contender& contender) const {
    if (!options_.check || !contender.action) return;
    buffers.fill(values);
    contender.action(0, buffers.copies());
    look_at(buffers, values, contender);
  }
  void look_at(const Buffers& buffers, const Values& values, Contender& contender) const {
    contender.wrong += sum_over_ranks(buffers.wrong(values, contender.deviation));
  }

  // Out of place, the results of the timed loop are checked as well. In place, it has used its own results as inputs.
  void time(const Buffers& buffers, const Values& values, Contender& contender) const {
    if (!contender.action) return;
    buffers.fill(values);
    const std::uint64_t since = world_.job().ledger().next_sequence();
    contender.action(0, 1);
    contender.traffic = world_.job().ledger().traffic(since);
    contender.action(1, buffers.copies() - 1);  // a short loop would leave some copies without results
    const Timing mine =
        measure(world_, {options_.warmup, options_.iterations, options_.seconds, options_.least_seconds}, contender.action);
    contender.timings.push_back(over_ranks(world_, mine, options_.over));
    if (options_.check && !buffers.in_place()) look_at(buffers, values, contender);
  }

  // The result is valid at rank 0.
  double most_over_ranks(double mine) const {
    const std::vector<double> all = to_rank0(world_, mine);
    return std::accumulate(all.begin(), all.end(), mine, worse);
  }
  std::int64_t sum_over_ranks(std::int64_t mine) const {
    const std::vector<double> all = to_rank0(world_, static_cast<double>(mine));
    return static_cast<std::int64_t>(from_rank0(world_, std::accumulate(all.begin(), all.end(), 0.0)));
  }

  const Communicator& world_;
  const Options& options_;
  Table table_;
  Machine machine_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Row> rows_;
};

}  // namespace

void check_methods(const Communicator& world, const Options& options) {
  if (options.every_test || options.every_algorithm) return;
  const Case empty = Case::of_bytes(*options.tests.front(), world.size() - options.servers, 0, options.dtypes.front(),
                                    options.ops.front(), 0, options.servers);
  for (const Method& method : options.methods) check_method(world, empty, method, options.quantization);
}

void run_tests(const Communicator& world, const Options& options) { TestRun(world, options).run(); }

}  // namespace perf
