#include "server/server_side.hpp"

#include "core/fail.hpp"
#include "server/keyed_messages.hpp"
#include "server/message_kinds.hpp"

namespace stretto {

ServerSide::ServerSide(const ServedLayout& layout, Mailbox& mailbox, int rank)
    : layout_(layout), mailbox_(mailbox), rank_(rank) {
  for (std::size_t t = 0; t < layout.tables.size(); ++t) make_parts(t);
}

void ServerSide::make_parts(std::size_t t) {
  const ServedTable& served = layout_.tables[t].served;
  const Consistency& consistency = layout_.options.consistency;
  if (served.width > 0) rows_.try_emplace(t, served, layout_.workers, consistency);
  for (std::size_t p = 0; p < layout_.tables[t].parts.size(); ++p) {
    const ServedLayout::Part& part = layout_.tables[t].parts[p];
    if (part.server != rank_) continue;
    const Tensor values = Tensor::zeros({part.count}, served.dtype);
    if (served.initial) served.initial(values, part.first);
    parts_.try_emplace({t, p}, values, layout_.workers, consistency, served.update.make(part.first, part.count));
  }
}

void ServerSide::serve() {
  while (mailbox_.open_partners() > 0) handle(mailbox_.receive());
  mailbox_.send_all();
}

void ServerSide::handle(const ReceivedMessage& message) {
  if (message.head.kind == goodbye) return handle_goodbye(message.from);
  if (rows_.contains(message.head.table)) return handle_rows(message);
  const PartKey key{static_cast<std::size_t>(message.head.table), static_cast<std::size_t>(message.head.part)};
  const auto found = parts_.find(key);
  ensure(found != parts_.end(), "Rank {} asks server {} for part {} of table {}, which it does not have.", message.from,
         rank_, message.head.part, message.head.table);
  ServedPart& part = found->second;
  if (message.head.kind != pull_part) {
    const DType dtype = layout_.tables[key.first].served.dtype;
    const auto count = static_cast<std::int64_t>(message.head.bytes / size_of(dtype));
    part.push(message.from, message.head.clock, message.bytes.view(std::size_t{0}, {count}, dtype));
  }
  if (message.head.kind != push_part) {
    part.pull({message.from, message.head.clock + (message.head.kind == pull_part ? 0 : 1), message.head.request});
  }
  answer(key, part);
}

void ServerSide::answer(const PartKey& key, ServedPart& part) {
  for (const ServedPart::Answer& answer : part.answers()) {
    mailbox_.send(answer.pull.worker,
                  {.kind = values_of_part,
                   .table = static_cast<std::uint32_t>(key.first),
                   .part = static_cast<std::int64_t>(key.second),
                   .clock = answer.version,
                   .request = answer.pull.request},
                  answer.values);
  }
}

void ServerSide::handle_rows(const ReceivedMessage& message) {
  ServedRows& rows = rows_.at(message.head.table);
  KeyedRows keyed = unpacked(message, layout_.tables[message.head.table].served, message.head.kind == push_part);
  if (message.head.kind == push_part) {
    rows.push(message.from, message.head.clock, std::move(keyed));
  } else {
    rows.pull({message.from, message.head.clock, message.head.request, std::move(keyed.keys)});
  }
  answer_rows(message.head.table, rows);
}

void ServerSide::answer_rows(std::size_t table, ServedRows& rows) {
  for (const ServedRows::Answer& answer : rows.answers()) {
    mailbox_.send(answer.pull.worker,
                  {.kind = values_of_part,
                   .table = static_cast<std::uint32_t>(table),
                   .clock = answer.version,
                   .request = answer.pull.request},
                  answer.rows);
  }
}

void ServerSide::handle_goodbye(int worker) {
  mailbox_.close(worker);
  for (auto& [key, part] : parts_) {
    part.leave(worker);
    answer(key, part);
  }
  for (auto& [table, rows] : rows_) {
    rows.leave(worker);
    answer_rows(table, rows);
  }
}

}  // namespace stretto
