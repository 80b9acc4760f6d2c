#include "run.hpp"

#include <algorithm>
#include <memory>
#include <numeric>

#include "buffers.hpp"
#include "fail.hpp"
#include "operation.hpp"
#include "peers/peer.hpp"
#include "result.hpp"
#include "values.hpp"

namespace perf {

using stretto::Algorithm;
using stretto::Communicator;
using stretto::Method;
using stretto::ReduceOp;

namespace {

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
      fail(stretto::ErrorCode::internal, "{} values are wrong; the #wrong columns say where.", table_.wrong());
    }
  }

 private:
  bool rank0() const { return world_.rank() == 0; }
  void say(const std::string& sentence) const {
    if (rank0()) table_.comment(sentence);
  }

  // A barrier moves nothing and has one row.
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

  std::vector<Method> methods_of(const Test& test) const {
    if (!options_.every_algorithm) return options_.methods;
    std::vector<Method> methods;
    for (const Algorithm algorithm : algorithms_for(test.collective)) {
      if (algorithm != Algorithm::two_level || options_.ranks_per_node > 0) methods.emplace_back(algorithm);
    }
    return methods;
  }

  // With one collective and one method a mistake is an error; among all, it is one thing less.
  bool can(const Case& what, const Method& method) const {
    if (method.algorithm == Algorithm::automatic || method.algorithm == Algorithm::two_level) return true;
    stretto::PlanRequest request{what.test->collective, method, 0, what.ranks, what.count, what.root};
    if (is_ring_exchange(*what.test)) request.root = 1;
    if (what.test->uneven) {
      const bool pairs = what.test->collective == stretto::Collective::all_to_all;
      for (int rank = 0; rank < what.ranks; ++rank) {
        request.counts.push_back(pairs ? what.sent(0, rank) : what.share(rank));
        if (pairs) request.receive_counts.push_back(what.sent(rank, 0));
      }
    }
    try {
      make_plan(request);
      return true;
    } catch (const stretto::Error& error) {
      if (!options_.every_test && !options_.every_algorithm) throw;
      say(fmt::format("{} is left out: {}", to_string(method), error.what()));
      return false;
    }
  }

  void sweep(const Test& test, stretto::DType dtype, ReduceOp op, int root) {
    const auto case_of = [&](std::int64_t bytes) { return Case::of_bytes(test, world_.size(), root, dtype, op, bytes); };
    const Values values(case_of(0), options_.seed);
    std::vector<Method> methods = methods_of(test);
    const auto impossible = [&](const Method& method) { return !can(case_of(options_.max_bytes), method); };
    methods.erase(std::remove_if(methods.begin(), methods.end(), impossible), methods.end());
    for (const std::int64_t bytes : sizes_of(test)) {
      const Case what = case_of(bytes);
      std::vector<Row> rows;
      for (const Method& method : methods) {
        rows.push_back({what, "", method.algorithm == Algorithm::automatic, {}, {}});
      }
      if (options_.out_of_place) place(what, values, methods, false, rows);
      if (options_.in_place && can_be_in_place(test)) place(what, values, methods, true, rows);
      for (const Row& row : rows) {
        if (rank0()) table_.row(row);
        rows_.push_back(row);
      }
    }
  }

  // Times each method, then each peer, and enters them into the rows.
  void place(const Case& what, const Values& values, const std::vector<Method>& methods, bool in_place,
             std::vector<Row>& rows) {
    const Buffers buffers(what, world_.rank(), in_place, copies_of(what));
    std::vector<std::optional<Placement>*> filled;
    for (std::size_t i = 0; i < methods.size(); ++i) {
      const auto action = [&](int copy) { perform(world_, what, methods[i], buffers.input(copy), buffers.output(copy)); };
      Placement placement;
      placement.wrong = checked(buffers, values, action);
      rows[i].algorithm = method_of(world_, what, methods[i], buffers.input(0), buffers.output(0));
      placement.timing = timed(buffers, action);
      if (!in_place && placement.wrong) *placement.wrong += sum_at_rank0(buffers.wrong(values));
      filled.push_back(in_place ? &rows[i].in_place : &rows[i].out_of_place);
      *filled.back() = placement;
    }
    for (const auto& peer : peers_) {
      std::optional<Timing> timing;
      if (peer->can(what, in_place)) {
        const auto action = [&](int copy) { peer->perform(what, in_place, buffers.input(copy), buffers.output(copy)); };
        const std::int64_t wrong = checked(buffers, values, action).value_or(0);
        if (wrong > 0) {
          fail(stretto::ErrorCode::internal, "{} gave {} wrong values in {} of {} bytes; leave it out of --vs.",
               peer->name(), wrong, what.test->name, what.bytes());
        }
        timing = timed(buffers, action);
      }
      for (std::optional<Placement>* placement : filled) (*placement)->peers.push_back(timing);
    }
  }

  // Several copies where they stay small beside the memory of the machine.
  int copies_of(const Case& what) const {
    constexpr std::int64_t most_bytes = 16 << 20;
    constexpr std::int64_t most_copies = 8;
    const std::int64_t fit = most_bytes / std::max<std::int64_t>(1, 2 * what.bytes());
    return static_cast<int>(std::clamp<std::int64_t>(fit, 1, std::min<std::int64_t>(most_copies, options_.iterations)));
  }

  // Fills the buffers and, if results are checked, performs it once on each copy: how many values were wrong on all ranks,
  // at rank 0. Results out of place are then forgotten, so that those of the timed loop can be checked as well.
  std::optional<std::int64_t> checked(const Buffers& buffers, const Values& values, const Action& action) const {
    buffers.fill(values);
    if (!options_.check) return std::nullopt;
    for (int copy = 0; copy < buffers.copies(); ++copy) action(copy);
    const std::int64_t wrong = sum_at_rank0(buffers.wrong(values));
    if (!buffers.in_place()) buffers.spoil();
    return wrong;
  }

  Timing timed(const Buffers& buffers, const Action& action) const {
    const Timing mine = measure(world_, {options_.warmup, options_.iterations, buffers.copies()}, action);
    return over_ranks(world_, mine, options_.over);
  }

  std::int64_t sum_at_rank0(std::int64_t mine) const {
    const std::vector<double> all = to_rank0(world_, static_cast<double>(mine));
    return static_cast<std::int64_t>(std::accumulate(all.begin(), all.end(), 0.0));
  }

  const Communicator& world_;
  const Options& options_;
  Table table_;
  Machine machine_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Row> rows_;
};

}  // namespace

void run_tests(const Communicator& world, const Options& options) { TestRun(world, options).run(); }

}  // namespace perf
