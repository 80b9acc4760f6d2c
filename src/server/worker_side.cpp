#include "server/worker_side.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/fail.hpp"
#include "server/keyed_messages.hpp"

namespace stretto {
namespace {

Tensor checked(const ServedTable& table, const Tensor& tensor) {
  require(tensor.size() == table.elements && tensor.dtype() == table.dtype && tensor.device() == Device::cpu,
          "Table {} has {} elements of {}, and the tensor {} of {}; give host memory of the table's size and type.",
          table.name, table.elements, name(table.dtype), tensor.size(), name(tensor.dtype()));
  return tensor.reshaped({tensor.size()});
}

}  // namespace

WorkerSide::WorkerSide(const ServedLayout& layout, Mailbox& mailbox, int rank)
    : layout_(layout), mailbox_(mailbox), rank_(rank), tables_(layout.tables.size()) {}

void WorkerSide::require_present(const char* what) const {
  require(!left_, "Rank {} cannot {}: it has left the servers.", rank_, what);
}

void WorkerSide::send_parts(MessageKind kind, int table, std::uint64_t request, const Tensor& pushed) {
  const std::vector<ServedLayout::Part>& parts = layout_.table(table).parts;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    mailbox_.send(parts[p].server,
                  {.kind = kind,
                   .table = static_cast<std::uint32_t>(table),
                   .part = static_cast<std::int64_t>(p),
                   .clock = tables_[static_cast<std::size_t>(table)].clock,
                   .request = request},
                  pushed ? pushed.view(parts[p].first, {parts[p].count}) : Tensor());
  }
}

std::uint64_t WorkerSide::start(int table, const Tensor* pushed, const Tensor* values) {
  const ServedLayout::Table& its = layout_.table(table);
  require(its.served.width == 0, "Table {} is sparse; push and pull rows of keys.", its.served.name);
  const Tensor from = pushed != nullptr ? checked(its.served, *pushed) : Tensor();
  const Tensor to = values != nullptr ? checked(its.served, *values) : Tensor();
  const std::uint64_t id = next_request_++;
  Request& request = requests_[id];
  request.table = static_cast<std::size_t>(table);
  request.values = to;
  request.missing = values != nullptr ? its.parts.size() : 0;
  request.pushes = pushed != nullptr;
  send_parts(values == nullptr ? push_part : pushed == nullptr ? pull_part : push_and_pull_part, table, id, from);
  if (pushed != nullptr) ++tables_[request.table].clock;
  return id;
}

// A push goes to all servers, without keys too, since each of them counts clocks.
std::uint64_t WorkerSide::start_rows(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows,
                                     MessageKind kind) {
  const ServedTable& served = layout_.table(table).served;
  require(served.width > 0, "Table {} is dense, and has no keys; push or pull all of it.", served.name);
  check_keys(keys);
  require(rows.size() == std::ssize(keys) * served.width && rows.dtype() == served.dtype && rows.device() == Device::cpu,
          "{} keys of table {} have {} elements of {}, and the tensor {} of {}; give host memory of that size and type.",
          keys.size(), served.name, std::ssize(keys) * served.width, name(served.dtype), rows.size(), name(rows.dtype()));
  std::map<int, std::vector<std::int64_t>> places;
  for (std::size_t i = 0; i < keys.size(); ++i) places[layout_.ring.owner(keys[i])].push_back(static_cast<std::int64_t>(i));
  const std::uint64_t id = next_request_++;
  Request& request = requests_[id];
  request.table = static_cast<std::size_t>(table);
  request.pushes = kind == push_part;
  for (int server = layout_.workers; server < layout_.workers + layout_.options.servers; ++server) {
    const std::vector<std::int64_t>& of_server = places[server];
    if (of_server.empty() && kind == pull_part) continue;
    mailbox_.send(server,
                  {.kind = kind,
                   .table = static_cast<std::uint32_t>(table),
                   .part = std::ssize(of_server),
                   .clock = tables_[request.table].clock,
                   .request = id},
                  packed(keys, of_server, kind == push_part ? rows : Tensor()));
    request.missing += kind == pull_part ? 1 : 0;
  }
  if (kind == push_part) {
    ++tables_[request.table].clock;
  } else {
    request.values = rows;
    request.places = std::move(places);
  }
  return id;
}

void WorkerSide::take_rows(Request& request, const ReceivedMessage& message) {
  const std::vector<std::int64_t>& places = request.places.at(message.from);
  const std::size_t row_bytes = message.head.bytes / places.size();
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::memcpy(static_cast<std::byte*>(request.values.raw()) + static_cast<std::size_t>(places[i]) * row_bytes,
                static_cast<const std::byte*>(message.bytes.raw()) + i * row_bytes, row_bytes);
  }
  request.version = std::min(request.version, message.head.clock);
  --request.missing;
}

void WorkerSide::take(const ReceivedMessage& message) {
  const auto found = requests_.find(message.head.request);
  ensure(message.head.kind == values_of_part && found != requests_.end(), "Rank {} answers request {}, which is not open.",
         message.from, message.head.request);
  Request& request = found->second;
  const ServedLayout::Table& table = layout_.tables[request.table];
  if (table.served.width > 0) return take_rows(request, message);
  const ServedLayout::Part& part = table.parts[static_cast<std::size_t>(message.head.part)];
  const Tensor to = request.values.view(part.first, {part.count});
  ensure(message.head.bytes == to.bytes(), "Part {} came with {} bytes instead of {}.", message.head.part,
         message.head.bytes, to.bytes());
  std::copy_n(static_cast<const std::byte*>(message.bytes.raw()), to.bytes(), static_cast<std::byte*>(to.raw()));
  request.version = std::min(request.version, message.head.clock);
  --request.missing;
}

void WorkerSide::wait(std::uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  while (request.missing > 0) take(mailbox_.receive());
  if (request.pushes) mailbox_.send_all();
  if (request.values) tables_[request.table].version = request.version;
  requests_.erase(found);
}

std::int64_t WorkerSide::version(int table) const {
  layout_.table(table);
  return tables_[static_cast<std::size_t>(table)].version;
}

void WorkerSide::leave() {
  while (!requests_.empty()) wait(requests_.begin()->first);
  for (int server = 0; server < layout_.options.servers; ++server) {
    mailbox_.send(layout_.workers + server, {.kind = goodbye});
  }
  mailbox_.send_all();
  left_ = true;
}

}  // namespace stretto
