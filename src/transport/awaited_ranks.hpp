#pragma once
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace stretto {

// The ranks that this rank's threads wait for, once a wait is long. A rank that is asked what it is doing answers with them.
class AwaitedRanks {
 public:
  // One wait, from its begin to its end. Costs nothing until it is noted.
  class Wait {
   public:
    explicit Wait(AwaitedRanks& all) : all_(all) {}
    ~Wait() {
      if (noted_) all_.set(this, {});
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    void note(std::vector<int> ranks) {
      noted_ = true;
      all_.set(this, std::move(ranks));
    }

   private:
    AwaitedRanks& all_;
    bool noted_ = false;
  };

  std::vector<int> all() const {
    const std::lock_guard lock(mutex_);
    std::set<int> ranks;
    for (const auto& [wait, its] : waits_) ranks.insert(its.begin(), its.end());
    return {ranks.begin(), ranks.end()};
  }

 private:
  void set(const Wait* wait, std::vector<int> ranks) {
    const std::lock_guard lock(mutex_);
    if (ranks.empty()) {
      waits_.erase(wait);
    } else {
      waits_[wait] = std::move(ranks);
    }
  }

  mutable std::mutex mutex_;
  std::map<const Wait*, std::vector<int>> waits_;
};

}  // namespace stretto
