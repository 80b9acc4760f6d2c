#include "apps/train/run/elastic.hpp"
#include "apps/train/run/beginning.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "apps/common/fail.hpp"
#include "apps/train/run/resuming.hpp"
#include "apps/train/run/training_run.hpp"

namespace apps {

using namespace stretto;

namespace {

class ElasticTraining {
 public:
  ElasticTraining(const Communicator& world, const CommandLine& line, StopRequest& stop, Rejoin& rejoin,
                  JobProgress& progress)
      : line_(line), stop_(stop), rejoin_(rejoin), progress_(progress) {
    train_on(world);
    line_.layout.automatic = false;  // it has been chosen
    whole_ = line_;
  }

  void run() {
    std::optional<Error> loss;
    bool joins = rejoin_.joined();
    while (true) {
      try {
        if (loss && !regroup(*loss)) return;
        loss.reset();
        if (std::exchange(joins, false)) {
          carried_ = std::make_unique<CarriedTraining>();
          share(ranks_, *carried_);
        }
        rejoin_.trains_on(ranks_);
        carried_ = run_training(ranks_, line_, stop_, progress_,
                                {.memory = line_.replicate_state ? &memory_ : nullptr,
                                 .rejoin = rejoin_.any() ? &rejoin_ : nullptr,
                                 .carried = std::move(carried_)});
        if (!carried_) return rejoin_.ends(ranks_);
        take_in();
      } catch (const Error& error) {
        carried_.reset();
        if (has_ended_ || !error.is_of_another_rank()) throw;
        rejoin_.regroups(ranks_);
        loss = error;
      }
    }
  }

 private:
  // If those that came are lost, training goes on without them.
  void take_in() {
    const int before = ranks_.size();
    std::string why;
    try {
      train_on(rejoin_.take_in(ranks_));
      line_ = whole_;
      share(ranks_, *carried_);
      why = fmt::format("{} of {} ranks have joined.", ranks_.size() - before, ranks_.size());
    } catch (const Error& error) {
      if (ranks_.size() > before) throw;
      ranks_.job().check_ranks();
      why = error.what();
    }
    if (ranks_.rank() != 0) return;
    const std::string sentence = fmt::format("{} Training goes on with {} ranks, dp {}, after step {}.\n", why,
                                             ranks_.size(), line_.mesh_on(ranks_.size())[Axis::data], carried_->step);
    std::fputs(sentence.c_str(), stderr);
  }

  // Returns whether this rank goes on. Shrinks until just those are left that were planned to go on. If another rank is lost
  // meanwhile, saving may fail on some ranks only; these meet the others in the next shrink, and go on as those do.
  bool regroup(const Error& loss) {
    const int before = ranks_.size();
    std::vector<int> others;  // that leave, by their ranks in left_
    while (true) {
      leave_behind(others, loss);
      if (those_left_ == planned_) break;
      planned_ = those_who_go_on(loss);
      others.clear();
      for (int rank = 0; rank < left_.size(); ++rank) {
        if (!std::binary_search(planned_.begin(), planned_.end(), those_left_[rank])) others.push_back(rank);
      }
      if (line_.replicate_state) {
        memory_.save(left_, line_.save);  // also by those that leave
      } else if (others.empty()) {
        break;
      }
      if (std::find(others.begin(), others.end(), left_.rank()) != others.end()) return false;
    }
    train_on(left_);
    const bool compared_copies = line_.check_replicas > 0;
    line_ = line_on(ranks_.size());
    decide_where_to_begin();
    try {
      rank0_first(ranks_, [&] { line_.check(ranks_.size(), ranks_.rank()); });
    } catch (const Error& error) {
      fail(error.code(), "{} {}", loss.what(), error.what());
    }
    if (ranks_.rank() == 0) {
      std::string from = "from the beginning, since the job has no checkpoint yet";
      if (line_.resume == Resume::yes) {
        const std::int64_t step = newest_step(line_);
        const std::int64_t microbatches = line_.trainer.on(line_.mesh_on(ranks_.size())).microbatches();
        from = fmt::format("after step {}{}", step, progress_.lost_behind(step, microbatches));
      }
      const std::string without = compared_copies && line_.check_replicas == 0 ? ", without --check-replicas" : "";
      const std::string sentence =
          fmt::format("{} Training goes on with {} of {} ranks, dp {}{}, {}.\n", loss.what(), ranks_.size(), before,
                      line_.mesh_on(ranks_.size())[Axis::data], without, from);
      std::fputs(sentence.c_str(), stderr);
    }
    return true;
  }

  std::vector<int> those_who_go_on(const Error& loss) {
    try {
      return ranks_to_go_on(those_left_, line_.mesh_on(ranks_.size()), [&](int ranks) { return trains_on(ranks); });
    } catch (const Error& error) {
      has_ended_ = true;  // because of the ranks that are lost, which launch() then names
      fail(ErrorCode::peer_lost, "{} {}", loss.what(), error.what());
    }
  }

  CommandLine line_on(int ranks) const {
    CommandLine fewer = line_;
    fewer.trainer.mesh[Axis::data] = 0;  // follows from the ranks
    const bool has_one_copy = fewer.mesh_on(ranks).divided(token_axes).empty();
    if (has_one_copy) fewer.check_replicas = 0;
    if (!fewer.has_ranks_to_compare(ranks)) fewer.straggler_threshold.reset();
    if (ranks == 1) fewer.first_step_timeout = 0;
    return fewer;
  }

  bool trains_on(int ranks) const {
    const CommandLine fewer = line_on(ranks);
    try {
      fewer.trainer.on(fewer.mesh_on(ranks)).check();
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  // Those that are left now, without `others` of them.
  void leave_behind(const std::vector<int>& others, const Error& loss) {
    try {
      std::vector<int> survivors;
      left_ = left_.job().shrink(others, &survivors);
      for (int& rank : survivors) rank = those_left_[rank];
      those_left_ = std::move(survivors);
    } catch (const Error& error) {
      has_ended_ = true;
      const bool rank0_has_said_why = error.code() == ErrorCode::unavailable && loss.code() == ErrorCode::peer_gave_up;
      if (rank0_has_said_why) throw loss;
      throw;
    }
  }

  void train_on(const Communicator& ranks) {
    ranks_ = left_ = ranks;
    those_left_.resize(static_cast<std::size_t>(ranks.size()));
    std::iota(those_left_.begin(), those_left_.end(), 0);
    planned_.clear();
  }

  void decide_where_to_begin() {
    std::int64_t resumes = ranks_.rank() == 0 && can_go_on(line_) ? 1 : 0;
    ranks_.broadcast(&resumes, &resumes, 1, DType::i64, 0, Stream::inline_(), {.tag = "whether to resume"}).wait();
    if (resumes != 0) line_ = resumed(line_);
  }

  Communicator ranks_;           // that train
  Communicator left_;            // those of them that are left: another one may be lost before all go on
  std::vector<int> planned_;     // by rank in ranks_: those that train next, if the next shrink leaves just them
  std::vector<int> those_left_;  // their ranks in ranks_
  CommandLine line_;
  CommandLine whole_;  // with all ranks
  StopRequest& stop_;
  Rejoin& rejoin_;
  JobProgress& progress_;
  ReplicatedState memory_;
  std::unique_ptr<CarriedTraining> carried_;  // to ranks_ that run_training() gets next
  bool has_ended_ = false;                    // the job cannot go on
};

}  // namespace

void train_and_go_on(const Communicator& world, const CommandLine& line, StopRequest& stop, Rejoin& rejoin,
                     JobProgress& progress) {
  if (line.elastic) return ElasticTraining(world, line, stop, rejoin, progress).run();
  run_training(world, line, stop, progress);
}

std::vector<int> ranks_to_go_on(const std::vector<int>& left, const MeshShape& mesh,
                                const std::function<bool(int ranks)>& trains_on) {
  const auto replica_of = [&](int rank) { return mesh.place(rank, Axis::data); };
  const std::int64_t ranks_of_one = mesh.ranks() / mesh[Axis::data];
  std::map<int, std::int64_t> left_of;  // by replica
  for (const int rank : left) ++left_of[replica_of(rank)];
  std::vector<int> result = left;
  const bool drops_replicas = left_of[0] == ranks_of_one;
  if (drops_replicas) std::erase_if(result, [&](int rank) { return left_of[replica_of(rank)] < ranks_of_one; });
  auto replicas = static_cast<std::int64_t>(result.size()) / ranks_of_one;
  if (replicas == 0) {
    fail(ErrorCode::unavailable, "Of {} ranks {} are left, and one replica takes {}; start the job again.", mesh.ranks(),
         left.size(), ranks_of_one);
  }
  while (replicas > 1 && !trains_on(static_cast<int>(replicas * ranks_of_one))) --replicas;
  if (drops_replicas) {
    std::set<int> chosen;
    for (const int rank : result) chosen.insert(replica_of(rank));
    const auto behind = std::next(chosen.begin(), replicas);
    std::erase_if(result, [&](int rank) { return behind != chosen.end() && replica_of(rank) >= *behind; });
  } else {
    result.resize(static_cast<std::size_t>(replicas * ranks_of_one));
  }
  return result;
}

}  // namespace apps
