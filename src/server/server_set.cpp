#include "stretto/server.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "core/fail.hpp"
#include "server/mailbox.hpp"
#include "server/served_layout.hpp"
#include "server/server_side.hpp"
#include "server/worker_side.hpp"

namespace stretto {
namespace {

// Workers talk to all servers, and servers to all workers.
std::vector<int> partners_of(const ServedLayout& layout, int rank) {
  const bool is_server = layout.is_server(rank);
  std::vector<int> partners(static_cast<std::size_t>(is_server ? layout.workers : layout.options.servers));
  std::iota(partners.begin(), partners.end(), is_server ? 0 : layout.workers);
  return partners;
}

}  // namespace

struct ServerSet::State {
  State(const Communicator& ranks, std::vector<ServedTable> tables, const Options& options)
      : rank(ranks.rank()),
        layout(ranks, std::move(tables), options),
        mailbox(ranks.duplicate("servers"), partners_of(layout, rank), options.inbox_bytes) {
    if (layout.is_server(rank)) {
      server.emplace(layout, mailbox, rank);
    } else {
      worker.emplace(layout, mailbox, rank);
    }
  }

  WorkerSide& as_worker(const char* what) {
    require(worker.has_value(), "Rank {} cannot {}: it is a server.", rank, what);
    worker->require_present(what);
    return *worker;
  }

  int rank;
  ServedLayout layout;
  Mailbox mailbox;
  std::optional<WorkerSide> worker;  // this rank is one of both
  std::optional<ServerSide> server;
};

ServerSet::ServerSet(const Communicator& ranks, std::vector<ServedTable> tables, const Options& options)
    : state_(std::make_unique<State>(ranks, std::move(tables), options)) {}
ServerSet::~ServerSet() = default;

bool ServerSet::is_server() const { return state_->server.has_value(); }
int ServerSet::workers() const { return state_->layout.workers; }

int ServerSet::server_of(int table, std::int64_t element) const {
  const ServedLayout::Table& its = state_->layout.table(table);
  require(element >= 0 && element < its.served.elements, "Table {} has no element {}.", its.served.name, element);
  const auto behind = std::ranges::upper_bound(its.parts, element, {}, &ServedLayout::Part::first);
  return std::prev(behind)->server;
}

void ServerSet::serve() {
  require(is_server(), "Rank {} is a worker and serves nothing.", state_->rank);
  state_->server->serve();
}

ServerSet::Pending ServerSet::push(int table, const Tensor& pushed) {
  return Pending(state_->as_worker("push").start(table, &pushed, nullptr));
}

ServerSet::Pending ServerSet::pull(int table, const Tensor& values) {
  return Pending(state_->as_worker("pull").start(table, nullptr, &values));
}

ServerSet::Pending ServerSet::push_pull(int table, const Tensor& pushed, const Tensor& values) {
  return Pending(state_->as_worker("push and pull").start(table, &pushed, &values));
}

ServerSet::Pending ServerSet::push(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows) {
  return Pending(state_->as_worker("push").start_rows(table, keys, rows, push_part));
}

ServerSet::Pending ServerSet::pull(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows) {
  return Pending(state_->as_worker("pull").start_rows(table, keys, rows, pull_part));
}

void ServerSet::wait(const Pending& pending) {
  if (state_->worker) state_->worker->wait(pending.request_);
}

std::int64_t ServerSet::version(int table) const {
  state_->layout.table(table);
  return state_->worker ? state_->worker->version(table) : 0;
}

void ServerSet::leave() { state_->as_worker("leave").leave(); }

ServerSet::Traffic ServerSet::traffic() const {
  const Mailbox::Traffic& its = state_->mailbox.traffic();
  return {its.payload_sent, its.heads_sent, its.messages_sent};
}

}  // namespace stretto
