#include "interop/nccl/join.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <thread>
#include <type_traits>
#include <utility>

#include "interop/nccl/calls/answers.hpp"
#include "interop/nccl/report.hpp"
#include "interop/nccl/trial.hpp"
#include "interop/nccl/unique_id.hpp"
#include "stretto/device.hpp"

namespace stretto::nccl_door {
namespace {

template <std::size_t size>
void put(std::array<char, size>& place, const std::string& text) {
  place.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), size - 1), place.begin());
}

struct Card {  // the data that each rank sends to the others
  std::array<char, 48> gpu, gpu_name;
  std::array<char, 160> served;
};
using Sentence = std::array<char, 400>;  // empty: no obstacle

// Collects the thread's calls of the C interface until end(), which makes them for all its ranks in parallel.
class Together {
 public:
  Together() { strettoGroupStart(); }
  ~Together() {
    if (open_) strettoGroupEnd();
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;
  void end() {
    open_ = false;
    check(strettoGroupEnd());
  }

 private:
  bool open_ = true;
};

// The ranks of one communicator that one thread makes.
class Joining {
 public:
  explicit Joining(std::vector<Join*> joins) : joins_(std::move(joins)), ranks_(joins_.size()) {
    for (Join* join : joins_) *join->comm = nullptr;
  }

  void run() {
    try {
      meet();
      const std::vector<Card> cards = tell([&](std::size_t i) { return card_of(*joins_[i]); });
      const std::string sharing = shared_gpu(cards);
      const Rules rules = size() > 1 ? rules_of(cards) : Rules{};
      if (!sharing.empty()) {
        prepare_gpus(sharing);
        add_shared();
      } else {
        if (!rules.empty()) prepare_gpus("STRETTO_NCCL_SERVE gives Stretto " + text_of(rules));
        join_nccl(rules);
      }
    } catch (...) {
      const ncclResult_t result = refuse_current_exception();
      for (std::size_t i = 0; i < joins_.size(); ++i) {
        joins_[i]->result = result;
        note(joins_[i]->function, By::nobody, last_sentence() == nullptr ? "no memory" : last_sentence());
        if (ranks_[i] != nullptr) strettoCommAbort(ranks_[i]);  // so that the other ranks do not wait
      }
    }
  }

 private:
  int size() const { return joins_.front()->nranks; }

  void meet() {
    Together all;
    for (std::size_t i = 0; i < joins_.size(); ++i) {
      strettoConfig_t config = STRETTO_CONFIG_INITIALIZER;
      if (joins_[i]->config) config.commName = joins_[i]->config->name();
      check(strettoCommInitRankConfig(&ranks_[i], joins_[i]->nranks, as_ours(joins_[i]->id), joins_[i]->rank, &config));
    }
    all.end();
  }

  // All-gathers say(i), the value of this thread's rank i. Returns the values of all ranks.
  template <class Say, class What = std::invoke_result_t<Say, std::size_t>>
  std::vector<What> tell(const Say& say) {
    std::vector<What> said(joins_.size());
    std::vector<std::vector<What>> heard(joins_.size(), std::vector<What>(static_cast<std::size_t>(size())));
    for (std::size_t i = 0; i < joins_.size(); ++i) said[i] = say(i);
    Together all;
    for (std::size_t i = 0; i < joins_.size(); ++i) {
      check(strettoAllGather(&said[i], heard[i].data(), sizeof(What), strettoUint8, ranks_[i], nullptr));
    }
    all.end();
    return heard.front();
  }

  static Card card_of(const Join& join) {
    const GpuDescription gpu = cuda().describe(join.device);
    Card card;
    put(card.gpu, gpu.uuid);
    put(card.gpu_name, gpu.name);
    put(card.served, text_of(rules_from_settings()));
    return card;
  }

  // Names two ranks that share a GPU; empty if there are none.
  static std::string shared_gpu(const std::vector<Card>& cards) {
    std::map<std::string, std::size_t> users;
    for (std::size_t rank = 0; rank < cards.size(); ++rank) {
      const auto [user, is_first] = users.emplace(cards[rank].gpu.data(), rank);
      if (!is_first) {
        return fmt::format("ranks {} and {} share GPU {} ({})", user->second, rank, cards[rank].gpu.data(),
                           cards[rank].gpu_name.data());
      }
    }
    return "";
  }

  static Rules rules_of(const std::vector<Card>& cards) {
    for (std::size_t rank = 1; rank < cards.size(); ++rank) {
      if (std::strcmp(cards[rank].served.data(), cards[0].served.data()) == 0) continue;
      throw Refusal(ncclInvalidUsage,
                    fmt::format("Stretto is to serve {} on rank 0, but {} on rank {}; give all ranks the same "
                                "STRETTO_NCCL_SERVE, STRETTO_ALGO and STRETTO_DETERMINISTIC.",
                                cards[0].served.data(), cards[rank].served.data(), rank));
    }
    return rules_from_settings();
  }

  void prepare_gpus(const std::string& why) {
    const std::vector<Sentence> obstacles = tell([&](std::size_t i) {
      Sentence sentence{};
      try {
        choose_gpu(joins_[i]->device);
      } catch (const Error& error) {
        put(sentence, error.what());
      }
      return sentence;
    });
    for (std::size_t rank = 0; rank < obstacles.size(); ++rank) {
      if (obstacles[rank][0] == '\0') continue;
      throw Refusal(ncclInvalidUsage, fmt::format("Stretto was needed, for {}, but cannot use the GPU of rank {}: {}", why,
                                                  rank, obstacles[rank].data()));
    }
    std::vector<RankOnGpu> mine;
    for (std::size_t i = 0; i < joins_.size(); ++i) mine.push_back({ranks_[i], joins_[i]->device});
    try_gpus(mine);
  }

  CommPointer door_of(std::size_t i) {
    auto comm = std::make_shared<Comm>();
    comm->ranks = std::exchange(ranks_[i], nullptr);
    comm->rank = joins_[i]->rank;
    comm->size = joins_[i]->nranks;
    comm->device = joins_[i]->device;
    return comm;
  }

  void add_shared() {
    for (std::size_t i = 0; i < joins_.size(); ++i) {
      const CommPointer comm = door_of(i);
      comm->shared = true;
      *joins_[i]->comm = nccl_door::add_shared(comm);
      note(joins_[i]->function, By::stretto, gpu_is_shared);
    }
  }

  void join_nccl(const Rules& rules) {
    const ncclUniqueId id = id_of_nccls();
    for (strettoComm_t& ranks : ranks_) {
      if (rules.empty()) end_in_background(std::exchange(ranks, nullptr));
    }
    const RealNccl& nccl = real_nccl();
    const bool several = joins_.size() > 1;
    if (several) nccl.GroupStart();
    for (Join* join : joins_) {
      if (several) cuda().use_device(join->device);
      join->result = join->config ? nccl.CommInitRankConfig(join->comm, join->nranks, id, join->rank, join->config->get())
                                  : nccl.CommInitRank(join->comm, join->nranks, id, join->rank);
    }
    const ncclResult_t ended = several ? nccl.GroupEnd() : ncclSuccess;
    for (std::size_t i = 0; i < joins_.size(); ++i) {
      Join& join = *joins_[i];
      if (join.result == ncclSuccess) join.result = ended;
      note(join.function, By::nccl, "each rank has a GPU of its own");
      if (ranks_[i] == nullptr) continue;
      if (join.result != ncclSuccess && join.result != ncclInProgress) {
        strettoCommAbort(std::exchange(ranks_[i], nullptr));
        continue;
      }
      const CommPointer comm = door_of(i);
      comm->served = rules;
      add_served(*join.comm, comm);
    }
  }

  // Returns the id that NCCL made on rank 0. Rank 0 may belong to this thread.
  ncclUniqueId id_of_nccls() {
    struct Offer {
      ncclUniqueId id;
      ncclResult_t result;
    };
    std::vector<Offer> offers(joins_.size(), Offer{{}, ncclSuccess});
    for (std::size_t i = 0; i < joins_.size(); ++i) {
      if (joins_[i]->rank == 0) offers[i].result = real_nccl().GetUniqueId(&offers[i].id);
    }
    Together all;
    for (std::size_t i = 0; i < joins_.size(); ++i) {
      check(strettoBcast(&offers[i], sizeof(Offer), strettoUint8, 0, ranks_[i], nullptr));
    }
    all.end();
    if (offers.front().result != ncclSuccess)
      throw Refusal(offers.front().result, "NCCL could not make an id for a communicator on rank 0.");
    return offers.front().id;
  }

  std::vector<Join*> joins_;
  std::vector<strettoComm_t> ranks_;
};

}  // namespace

KeptConfig::KeptConfig(ncclConfig_t* config) : given_(config) {
  constexpr std::size_t most = 4096;
  if (config->size < sizeof config->size || config->size > most) return;  // NCCL reports this error
  bytes_.resize(config->size);
  std::memcpy(bytes_.data(), config, config->size);
  // Newer versions only append fields, so each field has the same offset in all versions that have it.
  const auto keep = [&](std::size_t offset, std::optional<std::string>& text) {
    if (offset + sizeof(char*) > bytes_.size()) return;
    const char* given = nullptr;
    std::memcpy(&given, bytes_.data() + offset, sizeof given);
    if (given == nullptr) return;
    text = given;
    given = text->c_str();
    std::memcpy(bytes_.data() + offset, &given, sizeof given);
  };
  keep(offsetof(ncclConfig_t, commName), name_);
  keep(offsetof(ncclConfig_t, netName), net_);
}

ncclResult_t join(std::vector<Join>& joins) {
  std::map<std::string, std::vector<Join*>> by_id;
  for (Join& join : joins) by_id[{join.id.internal, sizeof join.id.internal}].push_back(&join);
  std::vector<Joining> each;
  each.reserve(by_id.size());
  for (auto& [id, of_one] : by_id) each.emplace_back(std::move(of_one));
  if (joins.size() == 1) {
    each.front().run();
  } else {  // in other threads, so that the current GPU of this thread does not change
    std::vector<std::string> sentences(each.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < each.size(); ++i) {
        threads.emplace_back([&, i] {
          each[i].run();
          if (const char* const sentence = last_sentence()) sentences[i] = sentence;
        });
      }
    }
    for (const std::string& sentence : sentences) {
      if (!sentence.empty()) keep_last_sentence(sentence);
    }
  }
  for (const Join& join : joins) {
    if (join.result != ncclSuccess) return join.result;
  }
  return ncclSuccess;
}

}  // namespace stretto::nccl_door
