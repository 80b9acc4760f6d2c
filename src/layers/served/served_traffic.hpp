#pragma once
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "stretto/ledger.hpp"
#include "stretto/server.hpp"

namespace stretto {

// The pushes and pulls of a training step, in the order of the calls, in a stream of their own: they travel while the caller
// computes. Nobody else uses the server set while some are in flight. The ledger has them as messages.
class ServedTraffic {
 public:
  // Without overlap the calls block. `servers` must outlive the object. The ledger is that of `workers`.
  ServedTraffic(ServerSet& servers, const Communicator& workers, bool overlap);
  ~ServedTraffic();
  ServedTraffic(const ServedTraffic&) = delete;
  ServedTraffic& operator=(const ServedTraffic&) = delete;

  // The Work is done when the bytes have left; the tensor must stay as it is until then.
  [[nodiscard]] Work push(int table, const Tensor& gradients);
  // The Work is done when the values have come. Pulls that wait for each other are under way together.
  [[nodiscard]] Work pull(int table, const Tensor& values, const ServerSet::Task& task = {});

 private:
  struct Pull {
    int table;
    Tensor values;
    ServerSet::Task task;
  };
  struct UnderWay {
    ServerSet::Pending pull;
    std::exception_ptr failure = {};  // why it could not begin
  };
  std::optional<Pull> next_wanted();
  void begin_pulls();
  Work noted(const Tensor& tensor, bool sends, Work work) const;

  ServerSet& servers_;
  Communicator workers_;
  int ranks_;  // of the set, at first; the stream may lose some
  Stream stream_;
  std::shared_ptr<const Partners> partners_;
  std::mutex mutex_;
  std::deque<Pull> wanted_;            // not begun; under mutex_
  std::map<int, UnderWay> under_way_;  // by table; of the stream
};

}  // namespace stretto
