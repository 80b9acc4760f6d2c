#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "core/fail.hpp"
#include "core/parts.hpp"
#include "server/keyed_messages.hpp"
#include "server/mailbox.hpp"
#include "server/served_part.hpp"
#include "server/served_rows.hpp"
#include "stretto/require_same.hpp"
#include "stretto/server.hpp"

namespace stretto {
namespace {

// The parts of a push that also pulls go as one message each, so that the first ones come back while the last ones leave.
enum MessageKind : std::uint32_t { push_part, pull_part, push_and_pull_part, values_of_part, goodbye };

struct Part {
  std::int64_t first = 0, count = 0;
  int server = 0;  // its rank
};

struct Table {
  ServedTable served;
  std::vector<Part> parts;
  std::int64_t clock = 0;    // of a worker
  std::int64_t version = 0;  // of its last pull
};

// A worker's request until it is done.
struct Request {
  std::size_t table = 0;
  Tensor values;            // of a pull
  std::size_t missing = 0;  // parts of a pull
  std::int64_t version = std::numeric_limits<std::int64_t>::max();
  bool pushes = false;
  std::map<int, std::vector<std::int64_t>> places = {};  // of a sparse pull, by server: of the rows that it sends
};

std::string text(const ServedTable& table, const ServerSet::Options& options) {
  return fmt::format("{} of {} {}, rows of {}, {} servers, {} points, parts of {}, consistency {} {}", table.name,
                     table.elements, name(table.dtype), table.width, options.servers, options.points, options.part_elements,
                     static_cast<int>(options.consistency.kind), options.consistency.delay);
}

}  // namespace

struct ServerSet::State {
  State(const Communicator& ranks, std::vector<ServedTable> served, const Options& given) : options(given) {
    require(0 < options.servers && options.servers < ranks.size(), "{} servers of {} ranks leave no worker, or are none.",
            options.servers, ranks.size());
    require(
        options.points > 0 && options.part_elements > 0 && options.consistency.delay >= 0,
        "Servers with {} points, parts of {} elements and a delay of {} cannot be; give points and elements from 1 on, and "
        "a delay from 0 on.",
        options.points, options.part_elements, options.consistency.delay);
    std::vector<NamedValue> same;
    for (const ServedTable& table : served) {
      require((table.elements > 0) != (table.width > 0) && table.update.make != nullptr,
              "Table {} has {} elements, rows of {} and {} update; it needs elements or rows, and an update.", table.name,
              table.elements, table.width, table.update.make ? "an" : "no");
      require(table.width == 0 || !table.update.keeps_state,
              "Table {} is sparse, and its update keeps state, which would mix its keys; give one that keeps none.",
              table.name);
      require(table.width == 0 || options.consistency.kind != Consistency::Kind::exact,
              "Table {} is sparse, and exact consistency keeps versions of whole parts; choose another.", table.name);
      same.push_back({"a table", text(table, options)});
    }
    require_same(ranks, same);
    workers = ranks.size() - options.servers;
    rank = ranks.rank();
    ring = HashRing(options.points);
    for (int server = workers; server < ranks.size(); ++server) ring.add(server);
    for (ServedTable& table : served) {
      Table& its = tables.emplace_back();
      const auto parts = static_cast<int>(table.elements == 0 ? 0 : (table.elements - 1) / options.part_elements + 1);
      const int most = (parts + options.servers - 1) / options.servers;  // of a server
      std::map<int, int> of_server;
      for (int p = 0; p < parts; ++p) {
        const std::uint64_t key = (static_cast<std::uint64_t>(tables.size()) << 32) + static_cast<std::uint64_t>(p);
        const int server = ring.owner(key, [&](int each) { return of_server[each] < most; });
        ++of_server[server];
        its.parts.push_back({part_begin(table.elements, parts, p), part_size(table.elements, parts, p), server});
      }
      its.served = std::move(table);
    }
    std::vector<int> partners(static_cast<std::size_t>(is_server() ? workers : options.servers));
    std::iota(partners.begin(), partners.end(), is_server() ? 0 : workers);
    mailbox.emplace(ranks.duplicate("servers"), partners, options.inbox_bytes);
    for (std::size_t t = 0; t < tables.size(); ++t) make_own_parts(t);
  }

  bool is_server() const { return rank >= workers; }

  void make_own_parts(std::size_t t) {
    const ServedTable& served = tables[t].served;
    if (served.width > 0 && is_server()) own_rows.try_emplace(t, served, workers, options.consistency);
    for (std::size_t p = 0; p < tables[t].parts.size(); ++p) {
      const Part& part = tables[t].parts[p];
      if (part.server != rank) continue;
      const Tensor values = Tensor::zeros({part.count}, served.dtype);
      if (served.initial) served.initial(values, part.first);
      own.try_emplace({t, p}, values, workers, options.consistency, served.update.make(part.first, part.count));
    }
  }

  Table& table(int number) {
    require(number >= 0 && number < std::ssize(tables), "There is no table {}; {} are served.", number, tables.size());
    return tables[static_cast<std::size_t>(number)];
  }

  // ---- servers

  void handle(const ReceivedMessage& message) {
    if (message.head.kind == goodbye) return handle_goodbye(message.from);
    if (own_rows.contains(message.head.table)) return handle_rows(message);
    const std::pair key{static_cast<std::size_t>(message.head.table), static_cast<std::size_t>(message.head.part)};
    const auto found = own.find(key);
    ensure(found != own.end(), "Rank {} asks server {} for part {} of table {}, which it does not have.", message.from, rank,
           message.head.part, message.head.table);
    ServedPart& part = found->second;
    if (message.head.kind != pull_part) {
      const DType dtype = tables[key.first].served.dtype;
      const auto count = static_cast<std::int64_t>(message.head.bytes / size_of(dtype));
      part.push(message.from, message.head.clock, message.bytes.view(std::size_t{0}, {count}, dtype));
    }
    if (message.head.kind != push_part) {
      part.pull({message.from, message.head.clock + (message.head.kind == pull_part ? 0 : 1), message.head.request});
    }
    answer(key, part);
  }

  void answer(const std::pair<std::size_t, std::size_t>& key, ServedPart& part) {
    for (const ServedPart::Answer& answer : part.answers()) {
      mailbox->send(answer.pull.worker,
                    {.kind = values_of_part,
                     .table = static_cast<std::uint32_t>(key.first),
                     .part = static_cast<std::int64_t>(key.second),
                     .clock = answer.version,
                     .request = answer.pull.request},
                    answer.values);
    }
  }

  void handle_goodbye(int worker) {
    mailbox->close(worker);
    for (auto& [key, part] : own) {
      part.leave(worker);
      answer(key, part);
    }
    for (auto& [table, rows] : own_rows) {
      rows.leave(worker);
      answer_rows(table, rows);
    }
  }

  void handle_rows(const ReceivedMessage& message) {
    ServedRows& rows = own_rows.at(message.head.table);
    KeyedRows keyed = unpacked(message, tables[message.head.table].served, message.head.kind == push_part);
    if (message.head.kind == push_part) {
      rows.push(message.from, message.head.clock, std::move(keyed));
    } else {
      rows.pull({message.from, message.head.clock, message.head.request, std::move(keyed.keys)});
    }
    answer_rows(message.head.table, rows);
  }

  void answer_rows(std::size_t table, ServedRows& rows) {
    for (const ServedRows::Answer& answer : rows.answers()) {
      mailbox->send(answer.pull.worker,
                    {.kind = values_of_part,
                     .table = static_cast<std::uint32_t>(table),
                     .clock = answer.version,
                     .request = answer.pull.request},
                    answer.rows);
    }
  }

  // ---- workers

  void require_worker(const char* what) const {
    require(!is_server() && !left, "Rank {} cannot {}: it {}.", rank, what,
            is_server() ? "is a server" : "has left the servers");
  }

  Tensor checked(const Table& table, const Tensor& tensor) const {
    require(tensor.size() == table.served.elements && tensor.dtype() == table.served.dtype && tensor.device() == Device::cpu,
            "Table {} has {} elements of {}, and the tensor {} of {}; give host memory of the table's size and type.",
            table.served.name, table.served.elements, name(table.served.dtype), tensor.size(), name(tensor.dtype()));
    return tensor.reshaped({tensor.size()});
  }

  void send_parts(std::uint32_t kind, int number, std::uint64_t request, const Tensor& pushed) {
    const Table& its = table(number);
    for (std::size_t p = 0; p < its.parts.size(); ++p) {
      const Part& part = its.parts[p];
      mailbox->send(part.server,
                    {.kind = kind,
                     .table = static_cast<std::uint32_t>(number),
                     .part = static_cast<std::int64_t>(p),
                     .clock = its.clock,
                     .request = request},
                    pushed ? pushed.view(part.first, {part.count}) : Tensor());
    }
  }

  std::uint64_t start(int number, const Tensor* pushed, const Tensor* values) {
    Table& its = table(number);
    require(its.served.width == 0, "Table {} is sparse; push and pull rows of keys.", its.served.name);
    const Tensor from = pushed != nullptr ? checked(its, *pushed) : Tensor();
    const Tensor to = values != nullptr ? checked(its, *values) : Tensor();
    const std::uint64_t id = next_request++;
    Request& request = requests[id];
    request.table = static_cast<std::size_t>(number);
    request.values = to;
    request.missing = values != nullptr ? its.parts.size() : 0;
    request.pushes = pushed != nullptr;
    const MessageKind kind = values == nullptr ? push_part : pushed == nullptr ? pull_part : push_and_pull_part;
    send_parts(kind, number, id, from);
    if (pushed != nullptr) ++its.clock;
    return id;
  }

  // A push goes to all servers, without keys too, since each of them counts clocks.
  std::uint64_t start_rows(int number, const std::vector<std::uint64_t>& keys, const Tensor& rows, MessageKind kind) {
    Table& its = table(number);
    require(its.served.width > 0, "Table {} is dense, and has no keys; push or pull all of it.", its.served.name);
    check_keys(keys);
    require(rows.size() == std::ssize(keys) * its.served.width && rows.dtype() == its.served.dtype &&
                rows.device() == Device::cpu,
            "{} keys of table {} have {} elements of {}, and the tensor {} of {}; give host memory of that size and type.",
            keys.size(), its.served.name, std::ssize(keys) * its.served.width, name(its.served.dtype), rows.size(),
            name(rows.dtype()));
    std::map<int, std::vector<std::int64_t>> places;
    for (std::size_t i = 0; i < keys.size(); ++i) places[ring.owner(keys[i])].push_back(static_cast<std::int64_t>(i));
    const std::uint64_t id = next_request++;
    Request& request = requests[id];
    request.table = static_cast<std::size_t>(number);
    request.pushes = kind == push_part;
    for (int server = workers; server < workers + options.servers; ++server) {
      const std::vector<std::int64_t>& of_server = places[server];
      if (of_server.empty() && kind == pull_part) continue;
      mailbox->send(server,
                    {.kind = kind,
                     .table = static_cast<std::uint32_t>(number),
                     .part = std::ssize(of_server),
                     .clock = its.clock,
                     .request = id},
                    packed(keys, of_server, kind == push_part ? rows : Tensor()));
      request.missing += kind == pull_part ? 1 : 0;
    }
    if (kind == push_part) {
      ++its.clock;
    } else {
      request.values = rows;
      request.places = std::move(places);
    }
    return id;
  }

  void take_rows(Request& request, const ReceivedMessage& message) {
    const std::vector<std::int64_t>& places = request.places.at(message.from);
    const std::size_t row_bytes = message.head.bytes / places.size();
    for (std::size_t i = 0; i < places.size(); ++i) {
      std::memcpy(static_cast<std::byte*>(request.values.raw()) + static_cast<std::size_t>(places[i]) * row_bytes,
                  static_cast<const std::byte*>(message.bytes.raw()) + i * row_bytes, row_bytes);
    }
    request.version = std::min(request.version, message.head.clock);
    --request.missing;
  }

  void take(const ReceivedMessage& message) {
    const auto found = requests.find(message.head.request);
    ensure(message.head.kind == values_of_part && found != requests.end(), "Rank {} answers request {}, which is not open.",
           message.from, message.head.request);
    Request& request = found->second;
    if (tables[request.table].served.width > 0) return take_rows(request, message);
    const Part& part = tables[request.table].parts[static_cast<std::size_t>(message.head.part)];
    const Tensor to = request.values.view(part.first, {part.count});
    ensure(message.head.bytes == to.bytes(), "Part {} came with {} bytes instead of {}.", message.head.part,
           message.head.bytes, to.bytes());
    std::copy_n(static_cast<const std::byte*>(message.bytes.raw()), to.bytes(), static_cast<std::byte*>(to.raw()));
    request.version = std::min(request.version, message.head.clock);
    --request.missing;
  }

  Options options;
  int workers = 0, rank = 0;
  std::vector<Table> tables;
  std::optional<Mailbox> mailbox;
  HashRing ring;
  std::map<std::pair<std::size_t, std::size_t>, ServedPart> own;  // of a server, by table and part
  std::map<std::size_t, ServedRows> own_rows;                     // of a server, by sparse table
  std::map<std::uint64_t, Request> requests;                      // of a worker
  std::uint64_t next_request = 1;
  bool left = false;
};

ServerSet::ServerSet(const Communicator& ranks, std::vector<ServedTable> tables, const Options& options)
    : state_(std::make_unique<State>(ranks, std::move(tables), options)) {}
ServerSet::~ServerSet() = default;

bool ServerSet::is_server() const { return state_->is_server(); }
int ServerSet::workers() const { return state_->workers; }

int ServerSet::server_of(int table, std::int64_t element) const {
  const Table& its = state_->table(table);
  require(element >= 0 && element < its.served.elements, "Table {} has no element {}.", its.served.name, element);
  const auto behind = std::ranges::upper_bound(its.parts, element, {}, &Part::first);
  return std::prev(behind)->server;
}

void ServerSet::serve() {
  require(state_->is_server(), "Rank {} is a worker and serves nothing.", state_->rank);
  while (state_->mailbox->open_partners() > 0) state_->handle(state_->mailbox->receive());
  state_->mailbox->send_all();
}

ServerSet::Pending ServerSet::push(int table, const Tensor& pushed) {
  state_->require_worker("push");
  Pending pending;
  pending.request_ = state_->start(table, &pushed, nullptr);
  return pending;
}

ServerSet::Pending ServerSet::pull(int table, const Tensor& values) {
  state_->require_worker("pull");
  Pending pending;
  pending.request_ = state_->start(table, nullptr, &values);
  return pending;
}

ServerSet::Pending ServerSet::push_pull(int table, const Tensor& pushed, const Tensor& values) {
  state_->require_worker("push and pull");
  Pending pending;
  pending.request_ = state_->start(table, &pushed, &values);
  return pending;
}

ServerSet::Pending ServerSet::push(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows) {
  state_->require_worker("push");
  Pending pending;
  pending.request_ = state_->start_rows(table, keys, rows, push_part);
  return pending;
}

ServerSet::Pending ServerSet::pull(int table, const std::vector<std::uint64_t>& keys, const Tensor& rows) {
  state_->require_worker("pull");
  Pending pending;
  pending.request_ = state_->start_rows(table, keys, rows, pull_part);
  return pending;
}

void ServerSet::wait(const Pending& pending) {
  const auto found = state_->requests.find(pending.request_);
  if (found == state_->requests.end()) return;
  Request& request = found->second;
  while (request.missing > 0) state_->take(state_->mailbox->receive());
  if (request.pushes) state_->mailbox->send_all();
  if (request.values) state_->tables[request.table].version = request.version;
  state_->requests.erase(found);
}

std::int64_t ServerSet::version(int table) const { return state_->table(table).version; }

void ServerSet::leave() {
  state_->require_worker("leave");
  while (!state_->requests.empty()) {
    Pending pending;
    pending.request_ = state_->requests.begin()->first;
    wait(pending);
  }
  for (int server = 0; server < state_->options.servers; ++server) {
    state_->mailbox->send(state_->workers + server, {.kind = goodbye});
  }
  state_->mailbox->send_all();
  state_->left = true;
}

ServerSet::Traffic ServerSet::traffic() const {
  const Mailbox::Traffic& its = state_->mailbox->traffic();
  return {its.payload_sent, its.heads_sent, its.messages_sent};
}

}  // namespace stretto
