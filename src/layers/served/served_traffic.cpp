#include "layers/served/served_traffic.hpp"

#include <utility>

#include "core/fail.hpp"
#include "device/stream/abandoned_work.hpp"
#include "stretto/device.hpp"
#include "stretto/job.hpp"

namespace stretto {

ServedTraffic::ServedTraffic(ServerSet& servers, const Communicator& workers, bool overlap)
    : servers_(servers),
      workers_(workers),
      ranks_(servers.ranks().size()),
      stream_(overlap ? Stream("servers") : computation()) {
  Partners partners;
  partners.members = servers.ranks().job_ranks();
  partners_ = std::make_shared<const Partners>(std::move(partners));
}

ServedTraffic::~ServedTraffic() {
  wait_for_abandoned("A push or a pull", [&] { stream_.synchronize(); });
}

Work ServedTraffic::push(int table, const Tensor& gradients) {
  return noted(gradients, true,
               stream_.enqueue([this, table, gradients] { servers_.wait(servers_.push(table, gradients)); }));
}

Work ServedTraffic::pull(int table, const Tensor& values, const ServerSet::Task& task) {
  {
    const std::lock_guard lock(mutex_);
    wanted_.push_back({table, values, task});
  }
  return noted(values, false, stream_.enqueue([this, table] {
    begin_pulls();
    const auto found = under_way_.find(table);
    ensure(found != under_way_.end(), "Table {} has no pull under way.", table);
    const UnderWay its = found->second;
    under_way_.erase(found);  // it is no longer under way when wait() throws
    if (its.failure) std::rethrow_exception(its.failure);
    servers_.wait(its.pull);
  }));
}

std::optional<ServedTraffic::Pull> ServedTraffic::next_wanted() {
  const std::lock_guard lock(mutex_);
  if (wanted_.empty()) return std::nullopt;
  std::optional<Pull> next = std::move(wanted_.front());
  wanted_.pop_front();
  return next;
}

// One that cannot begin fails in its own task: those before it are under way.
void ServedTraffic::begin_pulls() {
  while (const std::optional<Pull> pull = next_wanted()) {
    UnderWay& its = under_way_[pull->table] = {};
    try {
      its.pull = servers_.pull(pull->table, pull->values, pull->task);
    } catch (...) {
      its.failure = std::current_exception();
    }
  }
}

Work ServedTraffic::noted(const Tensor& tensor, bool sends, Work work) const {
  Record record;
  record.collective = sends ? Collective::send : Collective::recv;
  record.method = Algorithm::direct;
  record.group = "servers";
  record.group_size = ranks_;
  record.dtype = tensor.dtype();
  record.count = tensor.size();
  record.bytes_sent = sends ? tensor.bytes() : 0;
  record.partners = partners_;
  record.stream = stream_.is_inline() ? "" : stream_.name();
  record.tag = sends ? "gradients" : "parameters";
  Ledger& ledger = workers_.job().ledger();
  ledger.attach(ledger.enter(std::move(record)), work);
  return work;
}

}  // namespace stretto
