#include "perf/peers/peer.hpp"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "common/fail.hpp"

namespace perf {

using stretto::Collective;
using stretto::DType;
using stretto::ReduceOp;

namespace {

// Connects Gloo's ranks through the existing communicator. Every rank sets the same number of keys in the same order, so
// that set() can be collective.
class CommunicatorStore : public gloo::rendezvous::Store {
 public:
  explicit CommunicatorStore(const stretto::Communicator& world) : world_(world) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    std::vector<char> mine(header_bytes);
    require(key.size() < key_bytes, "Gloo's key '{}' is longer than {} letters.", key, key_bytes - 1);
    std::copy(key.begin(), key.end(), mine.begin());
    const auto size = static_cast<std::int64_t>(data.size());
    std::copy_n(reinterpret_cast<const char*>(&size), sizeof size, mine.begin() + key_bytes);
    const std::vector<char> headers = everybodys(mine);
    std::vector<std::pair<std::string, std::int64_t>> entries;
    std::int64_t most = 0;
    for (int rank = 0; rank < world_.size(); ++rank) {
      const char* header = headers.data() + rank * header_bytes;
      std::int64_t bytes = 0;
      std::copy_n(header + key_bytes, sizeof bytes, reinterpret_cast<char*>(&bytes));
      entries.emplace_back(header, bytes);
      most = std::max(most, bytes);
    }
    std::vector<char> padded = data;
    padded.resize(most);
    const std::vector<char> contents = everybodys(padded);
    for (int rank = 0; rank < world_.size(); ++rank) {
      const auto from = contents.begin() + rank * most;
      known_[entries[rank].first].assign(from, from + entries[rank].second);
    }
  }

  std::vector<char> get(const std::string& key) override { return known_.at(key); }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      require(known_.count(key) == 1, "Gloo waits for '{}', which no rank has set.", key);
    }
  }

 private:
  static constexpr std::size_t key_bytes = 56;
  static constexpr std::size_t header_bytes = key_bytes + sizeof(std::int64_t);

  std::vector<char> everybodys(const std::vector<char>& mine) const {
    std::vector<char> all(mine.size() * world_.size());
    world_.all_gather(mine.data(), all.data(), static_cast<std::int64_t>(mine.size()), DType::u8, stretto::Stream::inline_())
        .wait();
    return all;
  }

  stretto::Communicator world_;
  std::map<std::string, std::vector<char>> known_;
};

template <class Visit>
bool with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::f64: visit.template operator()<double>(); return true;
    case DType::f32: visit.template operator()<float>(); return true;
    case DType::f16: visit.template operator()<gloo::float16>(); return true;
    case DType::i8: visit.template operator()<std::int8_t>(); return true;
    case DType::u8: visit.template operator()<std::uint8_t>(); return true;
    case DType::i32: visit.template operator()<std::int32_t>(); return true;
    case DType::u32: visit.template operator()<std::uint32_t>(); return true;
    case DType::i64: visit.template operator()<std::int64_t>(); return true;
    case DType::u64: visit.template operator()<std::uint64_t>(); return true;
    default: return false;
  }
}

using Function = void (*)(void*, const void*, const void*, std::size_t);
template <class T>
Function function_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return &gloo::sum<T>;
    case ReduceOp::prod: return &gloo::product<T>;
    case ReduceOp::min: return &gloo::min<T>;
    case ReduceOp::max: return &gloo::max<T>;
    default: return nullptr;
  }
}

// Between hosts Gloo needs the name of its network interface: from the variable that other users of Gloo read as well.
std::string network_interface() {
  const char* named = std::getenv("GLOO_SOCKET_IFNAME");
  return named != nullptr ? named : "lo";
}

class GlooPeer : public Peer {
 public:
  explicit GlooPeer(const stretto::Communicator& world) {
    gloo::transport::tcp::attr address;
    address.iface = interface_;
    auto device = gloo::transport::tcp::CreateDevice(address);
    auto context = std::make_shared<gloo::rendezvous::Context>(world.rank(), world.size());
    CommunicatorStore store(world);
    context->connectFullMesh(store, device);
    context_ = context;
  }

  const char* name() const override { return "gloo"; }
  std::string version() const override {
    return fmt::format("Gloo {}.{}.{}, TCP over {}", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH,
                       interface_ == "lo" ? "loopback" : interface_);
  }

  bool can(const Case& test_case, bool in_place) const override {
    const Collective collective = test_case.test->collective;
    if (collective == Collective::barrier) return true;
    if (collective == Collective::reduce_scatter || test_case.bytes() == 0) return false;
    if (test_case.test->uneven && has_root(collective)) return false;
    if (in_place) {
      return collective != Collective::gather && collective != Collective::scatter && can_be_in_place(*test_case.test) &&
             (!reduces(collective) || has_reduction(test_case));
    }
    return !reduces(collective) || has_reduction(test_case);
  }

  void perform(const Case& test_case, bool in_place, const void* input, void* output) override {
    auto* const in = static_cast<char*>(const_cast<void*>(input));
    auto* const out = static_cast<char*>(output);
    const auto element = static_cast<std::int64_t>(size_of(test_case.dtype));
    const std::int64_t bytes = test_case.count * element;
    const bool root = context_->rank == test_case.root;
    ++tag_;
    switch (test_case.test->collective) {
      case Collective::all_reduce:
      case Collective::reduce: reduce(test_case, in_place, input, output); break;
      case Collective::all_gather:
        if (test_case.test->uneven) {
          gloo::AllgathervOptions options(context_);
          std::vector<std::size_t> counts;
          for (const std::int64_t count : test_case.counts) counts.push_back(count * element);
          if (!in_place) options.setInput(in, counts[context_->rank]);
          options.setOutput(out, counts);
          options.setTag(tag_);
          gloo::allgatherv(options);
        } else {
          gloo::AllgatherOptions options(context_);
          if (!in_place) options.setInput(in, bytes);
          options.setOutput(out, bytes * test_case.ranks);
          options.setTag(tag_);
          gloo::allgather(options);
        }
        break;
      case Collective::all_to_all:
        if (test_case.test->uneven) {
          gloo::AlltoallvOptions options(context_);
          std::vector<std::int64_t> sends;
          std::vector<std::int64_t> receives;
          for (int other = 0; other < test_case.ranks; ++other) {
            sends.push_back(test_case.sent(context_->rank, other) * element);
            receives.push_back(test_case.sent(other, context_->rank) * element);
          }
          options.setInput(in, sends);
          options.setOutput(out, receives);
          options.setTag(tag_);
          gloo::alltoallv(options);
        } else {
          gloo::AlltoallOptions options(context_);
          options.setInput(in, bytes * test_case.ranks);
          options.setOutput(out, bytes * test_case.ranks);
          options.setTag(tag_);
          gloo::alltoall(options);
        }
        break;
      case Collective::broadcast: {
        gloo::BroadcastOptions options(context_);
        if (root && !in_place) options.setInput(in, bytes);
        options.setOutput(out, bytes);
        options.setRoot(test_case.root);
        options.setTag(tag_);
        gloo::broadcast(options);
        break;
      }
      case Collective::gather: {
        gloo::GatherOptions options(context_);
        options.setInput(in, bytes);
        if (root) options.setOutput(out, bytes * test_case.ranks);
        options.setRoot(test_case.root);
        options.setTag(tag_);
        gloo::gather(options);
        break;
      }
      case Collective::scatter: {
        gloo::ScatterOptions options(context_);
        std::vector<char*> shares;
        for (int rank = 0; root && rank < test_case.ranks; ++rank) shares.push_back(in + rank * bytes);
        if (root) options.setInputs(shares, bytes);
        options.setOutput(out, bytes);
        options.setRoot(test_case.root);
        options.setTag(tag_);
        gloo::scatter(options);
        break;
      }
      case Collective::send: {
        const auto sent = context_->createUnboundBuffer(in, bytes);
        const auto received = context_->createUnboundBuffer(out, bytes);
        received->recv((context_->rank + test_case.ranks - 1) % test_case.ranks, tag_);
        sent->send((context_->rank + 1) % test_case.ranks, tag_);
        received->waitRecv();
        sent->waitSend();
        break;
      }
      default: {
        gloo::BarrierOptions options(context_);
        options.setTag(tag_);
        gloo::barrier(options);
      }
    }
  }

 private:
  static bool has_reduction(const Case& test_case) {
    Function function = nullptr;
    with_type(test_case.dtype, [&]<class T>() { function = function_of<T>(test_case.op); });
    return function != nullptr;
  }

  void reduce(const Case& test_case, bool in_place, const void* input, void* output) {
    with_type(test_case.dtype, [&]<class T>() {
      auto* const in = static_cast<T*>(const_cast<void*>(input));
      auto* out = static_cast<T*>(output);
      const auto run = [&](auto& options) {
        options.setReduceFunction(function_of<T>(test_case.op));
        options.setTag(tag_);
        if (in != out || !in_place) options.setInput(in, test_case.count);
        options.setOutput(out, test_case.count);
      };
      if (test_case.test->collective == Collective::all_reduce) {
        gloo::AllreduceOptions options(context_);
        run(options);
        gloo::allreduce(options);
        return;
      }
      if (context_->rank !=
          test_case.root) {  // Gloo uses the output of every rank as working memory, but only the root has one
        scratch_.resize(std::max(scratch_.size(), test_case.count * sizeof(T)));
        out = reinterpret_cast<T*>(scratch_.data());
      }
      gloo::ReduceOptions options(context_);
      options.setRoot(test_case.root);
      run(options);
      gloo::reduce(options);
    });
  }

  std::string interface_ = network_interface();
  std::shared_ptr<gloo::Context> context_;
  std::uint32_t tag_ = 0;
  std::vector<char> scratch_;
};

}  // namespace

std::unique_ptr<Peer> make_gloo_peer(const stretto::Communicator& world) { return std::make_unique<GlooPeer>(world); }

}  // namespace perf
