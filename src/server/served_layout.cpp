#include "server/served_layout.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "core/parts.hpp"
#include "core/split_mix.hpp"
#include "device/gpu.hpp"
#include "server/filters/filter_chain.hpp"
#include "stretto/require_same.hpp"

namespace stretto {
namespace {

std::string text(const ServedTable& table, const ServerSet::Options& options) {
  std::string filters;
  for (const FilterKind& filter : table.filters) filters += (filters.empty() ? "" : ", ") + filter.name;
  const std::string rows = table.width == ServedTable::any_length ? "any length" : std::to_string(table.width);
  const Consistency consistency = table.consistency.value_or(options.consistency);
  return fmt::format(
      "{} of {} {}, rows of {}{}, filters [{}], {} servers, {} of them spares, {} points, parts of {}, consistency {} {}, "
      "{} copies, survivors "
      "{}, priority {}",
      table.name, table.elements, name(table.dtype), rows, table.key_cache ? " with a key cache" : "", filters,
      options.servers, options.spares, options.points, options.part_elements, static_cast<int>(consistency.kind),
      consistency.delay, options.copies, options.survivors_go_on ? "go on" : "end", table.priority);
}

void check(const ServedTable& table, const ServerSet::Options& options) {
  const Consistency consistency = table.consistency.value_or(options.consistency);
  require(consistency.delay >= 0, "Table {} has a delay of {}; give one from 0 on.", table.name, consistency.delay);
  require(
      (table.elements > 0) != table.is_sparse() && table.width >= ServedTable::any_length && table.update.update != nullptr,
      "Table {} has {} elements, rows of {} and {} update; it needs elements or rows, and an update.", table.name,
      table.elements, table.width, table.update.update ? "an" : "no");
  require(!table.is_sparse() || table.update.slots == 0,
          "Table {} is sparse, and its update keeps state in {} slots, which would mix its keys; give one that keeps none.",
          table.name, table.update.slots);
  require(!table.is_sparse() || consistency.kind != Consistency::Kind::exact,
          "Table {} is sparse, and exact consistency keeps versions of whole parts; choose another.", table.name);
  require(!table.key_cache || table.is_sparse(), "Table {} is dense: it has no keys to cache.", table.name);
  require(!table.key_cache || options.spares == 0,
          "Table {} has a key cache, which a server that joins has not; give no cache, or no spares.", table.name);
  require(!table.key_cache || table.width != ServedTable::any_length,
          "Table {} has rows of any length, and a key cache needs rows of equal length; give no cache, or a width.",
          table.name);
  check_filters(table);
}

}  // namespace

ServedLayout::ServedLayout(const Communicator& all, std::vector<ServedTable> served, const ServerSet::Options& given)
    : options(given), workers(all.size() - given.servers), ranks(all.size()) {
  require(0 < options.servers && options.servers < ranks, "{} servers of {} ranks leave no worker, or are none.",
          options.servers, ranks);
  require(
      options.points > 0 && options.part_elements > 0 && options.consistency.delay >= 0,
      "Servers with {} points, parts of {} elements and a delay of {} cannot be; give points and elements from 1 on, and "
      "a delay from 0 on.",
      options.points, options.part_elements, options.consistency.delay);
  require(0 <= options.copies && options.copies < options.servers,
          "{} servers cannot keep {} copies besides the first; give from 0 to {}.", options.servers, options.copies,
          options.servers - 1);
  require(0 <= options.spares && options.spares < options.servers,
          "{} spares of {} servers leave none that serves, or are none; give from 0 to {}.", options.spares, options.servers,
          options.servers - 1);
  require(options.spares == 0 || !goes_on(),
          "{} spares do not go with {} copies and survivors that {}: a server that joins is not told of losses; leave the "
          "spares, or both of the others, out.",
          options.spares, options.copies, options.survivors_go_on ? "go on" : "end");
  const int in_job = Communicator::Group::of(all).context().job().size();
  require(!goes_on() || ranks == in_job,
          "Servers of {} of a job's {} ranks cannot go on after a loss; give a communicator of all ranks.", ranks, in_job);
  require(!goes_on() || !gpu_in_use(),
          "Servers with {} copies, whose survivors {}, cannot go on after a loss in a process that uses a GPU; give neither "
          "option.",
          options.copies, options.survivors_go_on ? "go on" : "end");
  std::vector<NamedValue> same;
  for (const ServedTable& table : served) {
    check(table, options);
    same.push_back({"a table", text(table, options)});
  }
  require_same(all, same);
  HashRing ring(options.points);
  for (int server = workers; !is_spare(server) && server < ranks; ++server) ring.add(server);
  const int serving = options.servers - options.spares;
  for (ServedTable& table : served) {
    constexpr int key_parts = 4;  // of a server: when it is lost, that many others share its keys
    Table& its = tables.emplace_back();
    const auto parts =
        static_cast<int>(table.is_sparse() ? key_parts * options.servers : (table.elements - 1) / options.part_elements + 1);
    const int most = (parts - 1) / serving + 1;  // of a server
    std::map<int, int> of_server;
    for (int p = 0; p < parts; ++p) {
      std::vector<int> order = ring.order(ring_key({tables.size() - 1, static_cast<std::size_t>(p)}));
      // Consistent hashing with bounded loads (Mirrokni et al. 2018): the first server that has room.
      const auto with_room = std::ranges::find_if(order, [&](int server) { return of_server[server] < most; });
      std::rotate(order.begin(), with_room, order.end());
      ++of_server[order.front()];
      its.parts.push_back({part_begin(table.elements, parts, p), part_size(table.elements, parts, p), std::move(order)});
    }
    its.served = std::move(table);
  }
}

std::int64_t ServedLayout::Table::part_of(std::uint64_t key) const {
  return static_cast<std::int64_t>(split_mixed(key) % parts.size());
}

std::uint64_t ServedLayout::ring_key(const PartKey& key) const {
  return (static_cast<std::uint64_t>(key.first + 1) << 32) + static_cast<std::uint64_t>(key.second);
}

const ServedLayout::Table& ServedLayout::table(int number) const {
  require(number >= 0 && number < std::ssize(tables), "There is no table {}; {} are served.", number, tables.size());
  return tables[static_cast<std::size_t>(number)];
}

std::vector<int> ServedLayout::chain(const Part& part, const std::function<bool(int rank)>& is_left) const {
  std::vector<int> chain;
  for (const int server : part.servers) {
    if (is_left(server) && std::ssize(chain) <= options.copies) chain.push_back(server);
  }
  return chain;
}

std::vector<std::size_t> ServedLayout::sending_order(std::size_t table, int worker) const {
  std::map<int, int> of_server;                          // parts so far
  std::vector<std::tuple<int, int, std::size_t>> turns;  // turn, place in it, part
  for (std::size_t p = 0; p < tables[table].parts.size(); ++p) {
    const int server = tables[table].parts[p].servers.front() - workers;
    turns.emplace_back(of_server[server]++, (server + worker) % options.servers, p);
  }
  std::ranges::sort(turns);
  std::vector<std::size_t> order;
  order.reserve(turns.size());
  for (const auto& turn : turns) order.push_back(std::get<2>(turn));
  return order;
}

std::int64_t ServedLayout::all_parts() const {
  std::int64_t parts = 0;
  for (const Table& table : tables) parts += std::ssize(table.parts);
  return parts;
}

std::string ServedLayout::name_parts(const std::vector<PartKey>& parts) const {
  std::string text;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // first, behind the last
    std::size_t of_table = 0;
    for (const auto& [table, p] : parts) {
      if (table != t) continue;
      ++of_table;
      const Part& part = tables[t].parts[p];
      if (!ranges.empty() && ranges.back().second == part.first) {
        ranges.back().second += part.count;
      } else {
        ranges.emplace_back(part.first, part.first + part.count);
      }
    }
    if (of_table == 0) continue;
    text += text.empty() ? "" : ", ";
    if (tables[t].served.is_sparse()) {
      text += fmt::format("{} of {} parts of the keys", of_table, tables[t].parts.size());
    } else {
      for (const auto& [first, behind] : ranges) {
        text += fmt::format("{}{} to {}", first == ranges.front().first ? "elements " : ", ", first, behind - 1);
      }
    }
    text += fmt::format(" of table {}", tables[t].served.name);
  }
  return text;
}

}  // namespace stretto
