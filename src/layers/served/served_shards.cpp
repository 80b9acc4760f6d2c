#include "layers/served/served_shards.hpp"

#include <fmt/format.h>

#include <exception>
#include <map>
#include <utility>

#include "core/fail.hpp"
#include "layers/checkpoint/checkpoint_directory.hpp"
#include "layers/checkpoint/checkpoint_index.hpp"
#include "layers/checkpoint/piece_copy.hpp"
#include "layers/checkpoint/state_tensors.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;

// The question is three lines: what to do, its argument, and a path, which may be any text.
constexpr const char* tries = "try";            // argument: the checkpoint's id
constexpr const char* writes = "write";         // argument: the checkpoint's id
constexpr const char* loads_values = "values";  // no argument
constexpr const char* loads_all = "values and state";
struct Order {
  std::string what, argument, path;
};

std::string text_of(const Order& order) { return fmt::format("{}\n{}\n{}", order.what, order.argument, order.path); }

Order order_in(const std::string& text) {
  const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
  ensure(first != std::string::npos && second != std::string::npos, "Servers are asked '{}'.", text);
  return {text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
}

// The answer is a number and the name of the file that the server has written, or 'x', the number of an error's code, and
// its sentence.
std::string refusal(ErrorCode code, const std::string& sentence) {
  return fmt::format("x{} {}", static_cast<int>(code), sentence);
}
struct Answered {
  std::int64_t number = 0;
  std::string file;
};

std::vector<Answered> ask(ServerSet& servers, const Order& order) {
  std::vector<Answered> answers;
  for (const std::string& answer : servers.ask(text_of(order))) {
    const std::size_t space = answer.find(' ');
    const std::string behind = answer.substr(space + 1);
    if (answer.starts_with('x')) fail(static_cast<ErrorCode>(std::stoi(answer.substr(1, space - 1))), "{}", behind);
    answers.push_back({static_cast<std::int64_t>(std::stoull(answer)), behind});
  }
  return answers;
}

constexpr const char* own_prefix = ".served.";

void name_shards(const fs::path& directory, const std::vector<Answered>& answers) {
  for (std::size_t shard = 0; shard < answers.size(); ++shard) {
    fs::rename(directory / answers[shard].file, directory / shard_file(shard));
  }
  // A server that was lost after it wrote has left a file here, and its successor has written another one. One that was left
  // behind may have written later, into a checkpoint that has its name since. A user may delete older checkpoints meanwhile,
  // which is no error of this one.
  std::error_code ignored;
  std::vector<fs::path> others;
  const auto files_of = [&](const fs::path& parent) {
    std::vector<fs::path> result;
    for (fs::directory_iterator entry(parent, ignored); !ignored && entry != fs::directory_iterator();
         entry.increment(ignored)) {
      result.push_back(entry->path());
    }
    return result;
  };
  for (const fs::path& checkpoint : files_of(fs::absolute(directory).parent_path())) {
    if (checkpoint.filename() != directory.filename() && !names_a_step(checkpoint.filename())) continue;
    for (const fs::path& file : files_of(checkpoint)) {
      if (file.filename().string().starts_with(own_prefix)) others.push_back(file);
    }
  }
  for (const fs::path& other : others) fs::remove(other, ignored);
}

}  // namespace

std::vector<std::int64_t> write_served_shards(ServerSet& servers, const fs::path& directory, const std::string& id) {
  const std::vector<Answered> answers = ask(servers, {writes, id, fs::absolute(directory).string()});
  name_shards(directory, answers);
  std::vector<std::int64_t> digests;
  digests.reserve(answers.size());
  for (const Answered& answer : answers) digests.push_back(answer.number);
  return digests;
}

std::size_t try_served_shards(ServerSet& servers, const fs::path& directory, const std::string& id) {
  const std::vector<Answered> answers = ask(servers, {tries, id, fs::absolute(directory).string()});
  name_shards(directory, answers);
  return answers.size();
}

void read_served_shards(ServerSet& servers, const std::string& checkpoint, bool with_optimizer) {
  ask(servers, {with_optimizer ? loads_all : loads_values, "", fs::absolute(checkpoint).string()});
}

ServedShards::ServedShards(int rank, std::vector<TableParameters> tables, OptimizerKind kind,
                           std::function<void(std::int64_t)> begin_behind)
    : rank_(rank), tables_(std::move(tables)), kind_(std::move(kind)), begin_behind_(std::move(begin_behind)) {}

std::string ServedShards::own_name(const std::string& id) const { return fmt::format("{}{}.{}", own_prefix, id, rank_); }

std::string ServedShards::answer(const ServerSet::Question& question) const {
  try {
    const Order order = order_in(question.text);
    std::uint64_t number = 0;
    if (order.what == tries) {
      write_to_disk(fs::path(order.path) / own_name(order.argument), "\n");
    } else if (order.what == writes) {
      number = write(question, order.path, order.argument);
    } else {
      ensure(order.what == loads_values || order.what == loads_all, "Servers are asked to '{}'.", order.what);
      read(question, order.path, order.what == loads_all);
    }
    return fmt::format("{} {}", number, own_name(order.argument));
  } catch (const Error& error) {
    return refusal(error.code(), error.what());
  } catch (const std::exception& error) {
    return refusal(ErrorCode::io, error_sentence(error));
  }
}

std::uint64_t ServedShards::write(const ServerSet::Question& question, const fs::path& directory,
                                  const std::string& id) const {
  const auto shard = static_cast<std::size_t>(question.server);
  std::vector<TensorEntry> entries;
  std::vector<Tensor> tensors;
  CheckpointTensors pieces;
  for (std::size_t number = 0; number <= kind_.slots.size(); ++number) {
    for (const ServerSet::HeldPart& part : question.parts) {
      if (part.is_copy) continue;
      const Tensor& all = number == 0 ? part.values : part.state[number - 1];
      tables_.at(static_cast<std::size_t>(part.table))
          .for_each_in(part.first, all.size(),
                       [&](const Parameter& its, std::int64_t from, std::int64_t begin, std::int64_t count) {
                         const bool is_whole = count == its.elements();
                         // A server may have several runs of one parameter.
                         const std::string name = is_whole ? its.name : fmt::format("{}.from{}", its.name, from);
                         entries.push_back({tensor_name(kind_, number, name), safetensors_type(all.dtype()),
                                            is_whole ? its.extents : Shape{count}});
                         tensors.push_back(all.view(begin, {count}));
                         if (number != 0) return;
                         CheckpointTensor& saved = pieces[its.global_name()];
                         saved.shape = its.global_shape;
                         saved.pieces.push_back(
                             {shard, its.first, its.extents, from, count, is_whole && its.part_of.empty() ? "" : name});
                       });
    }
  }
  const std::string file = shard_file(shard);
  SafetensorsWriter writer(directory / own_name(id), entries,
                           {{"format", "pt"}, {id_key, id}, {shard_key, file}, {pieces_key, pieces_text(pieces)}});
  for (const Tensor& tensor : tensors) writer.write(tensor.raw(), tensor.bytes());
  return writer.finish();
}

void ServedShards::read(const ServerSet::Question& question, const std::string& checkpoint, bool with_optimizer) const {
  const CheckpointIndex index = read_index(checkpoint);
  CheckpointShards shards(checkpoint, index);
  for (const ServerSet::HeldPart& part : question.parts) {
    require(part.updates == 0, "{} cannot be loaded behind {} updates of the servers; load it before the first step.",
            checkpoint, part.updates);
    const auto read_run = [&](const Parameter& its, std::int64_t from, std::int64_t begin, std::int64_t count) {
      const auto saved = index.tensors.find(its.global_name());
      require(saved != index.tensors.end(), "{} has no parameter {}, which this model has.", checkpoint, its.global_name());
      for (std::size_t number = 0; number <= (with_optimizer ? kind_.slots.size() : 0); ++number) {
        read_elements(
            its, from, count, [&](const std::string& name) { return tensor_name(kind_, number, name); }, saved->second,
            shards, (number == 0 ? part.values : part.state[number - 1]).view(begin, {count}), false);
      }
    };
    tables_.at(static_cast<std::size_t>(part.table)).for_each_in(part.first, part.values.size(), read_run);
  }
  begin_behind_(with_optimizer ? index.optimizer_steps : 0);
}

}  // namespace stretto
