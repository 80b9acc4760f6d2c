#include "apps/train/examples/example_data.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "apps/common/fail.hpp"
#include "apps/train/data/mapped_file.hpp"
#include "stretto/layers/parameter.hpp"

namespace apps {

using stretto::ErrorCode;
using stretto::FillSlot;

namespace {

constexpr std::int64_t most_validation_sequences = 256;

struct EncodedLine {
  CountedTokens tokens;
  bool is_text;
  LineOfFile where;
};

struct EncodedFiles {
  std::vector<EncodedLine> lines;
  std::string names, content;
};

bool is_weight(const std::string& word) {
  double weight = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), weight);
  return error == std::errc() && end == word.data() + word.size();
}

void read_lines(const std::string& path, ExampleEncoder& encoder, std::int64_t vocabulary, EncodedFiles& to) {
  const MappedFile file(path);
  std::string_view rest = file.text();
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const LineOfFile where{path, number};
    const Example example = example_of(line, where);
    EncodedLine encoded{encoder.encode(example, where), std::holds_alternative<TextExample>(example), where};
    for (const std::int32_t token : encoded.tokens.tokens) {
      require(token < vocabulary, "{} has the token {}, but a vocabulary of {} ends at {}; give a larger --vocab-size.",
              where.text(), token, vocabulary, vocabulary - 1);
    }
    to.lines.push_back(std::move(encoded));
  }
}

EncodedFiles read_files(const char* flag, const DataOptions& options, const std::vector<std::string>& names,
                        ExampleEncoder& encoder, std::int64_t vocabulary) {
  for (const std::string& each : names) {
    require(!is_weight(each), "{} {} has weights, and JSON lines are not mixed by weights; name their files alone.", flag,
            fmt::join(names, " "));
  }
  EncodedFiles result;
  std::uint64_t digest = 0;
  const std::vector<std::string> paths = data_files(names, options.format);
  for (const std::string& path : paths) {
    read_lines(path, encoder, vocabulary, result);
    digest = digest * 0x9e3779b97f4a7c15U + DataFile(path).digest(paths.size());
  }
  if (result.lines.empty()) fail(ErrorCode::io, "{} has no line with an example.", fmt::join(names, " "));
  result.names = fmt::format("{}", fmt::join(names, " "));
  result.content = fmt::format("{} examples with the digest {:016x}", result.lines.size(), digest);
  return result;
}

void put_lines(std::span<const EncodedLine> lines, const std::string& what, PackedExamples& to) {
  for (const EncodedLine& line : lines) to.add(line.tokens, line.is_text, line.where);
  if (to.documents() == 0) {
    fail(ErrorCode::io, "{} no token that counts, so that there is nothing to learn from: an assistant must say something.",
         what);
  }
  to.pack();
}

}  // namespace

bool has_examples(const DataOptions& options) {
  if (options.format == DataFormat::jsonl) return true;
  const auto is_lines = [](const std::string& name) { return name.ends_with(".jsonl"); };
  return options.format == DataFormat::recognised && !options.train.empty() && std::ranges::all_of(options.train, is_lines);
}

ExampleData::ExampleData(const DataOptions& options, Tokenizer& tokenizer, std::int64_t vocabulary, std::int64_t sequence,
                         std::uint64_t seed)
    : train_(sequence), validation_(sequence), validates_on_tail_(options.validation.empty()), seed_(seed) {
  ExampleEncoder encoder(tokenizer, options.chat_template);
  const EncodedFiles files = read_files("--train-data", options, options.train, encoder, vocabulary);
  std::span<const EncodedLine> lines = files.lines;
  std::string on;
  if (validates_on_tail_) {
    require(lines.size() >= 2, "{} has 1 example, and the last tenth is to validate on; give --val-data.", files.names);
    const std::size_t kept = std::max<std::size_t>(1, lines.size() / 10);
    put_lines(lines.last(kept), fmt::format("The last {} examples of {}, which are to validate on, have", kept, files.names),
              validation_);
    lines = lines.first(lines.size() - kept);
    on = fmt::format("its last {} examples", kept);
  } else {
    const EncodedFiles its = read_files("--val-data", options, options.validation, encoder, vocabulary);
    put_lines(its.lines, its.names + " has", validation_);
    validation_content_ = fmt::format("{} in {} sequences", its.content, validation_.sequences());
    on = fmt::format("{} examples of {}", its.lines.size(), its.names);
  }
  put_lines(lines, files.names + " has", train_);
  train_content_ = fmt::format("{} in {} sequences", files.content, train_.sequences());
  description_ = fmt::format("data {}: {} examples{} in {}; validation on {} in {}", files.names, lines.size(),
                             encoder.chat_description().empty() ? "" : ", written as " + encoder.chat_description(),
                             train_.description(), on, validation_.description());
}

std::int64_t ExampleData::training_sequence(std::int64_t number) const {
  const std::int64_t pass = number / train_.sequences();
  if (pass != pass_) {
    order_.resize(static_cast<std::size_t>(train_.sequences()));
    std::iota(order_.begin(), order_.end(), 0);
    const std::string stream = fmt::format("pass {} over examples", pass);
    for (std::size_t left = order_.size(); left > 1; --left) {
      const double drawn = stretto::random_uniform(seed_, stream, left);
      std::swap(order_[left - 1], order_[static_cast<std::size_t>(drawn * static_cast<double>(left))]);
    }
    pass_ = pass;
  }
  return order_[static_cast<std::size_t>(number % train_.sequences())];
}

FillSlot ExampleData::training_slots(std::int64_t consumed) const {
  return [this, consumed](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) {
    train_.fill(training_sequence(consumed + slot), tokens, targets, starts);
  };
}

FillSlot ExampleData::validation_slots() const {
  return [this](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) {
    // Spread evenly.
    const std::int64_t number = slot * validation_.sequences() / validation_windows();
    validation_.fill(number, tokens, targets, starts);
  };
}

std::int64_t ExampleData::validation_windows() const { return std::min(validation_.sequences(), most_validation_sequences); }

std::vector<stretto::NamedValue> ExampleData::contents() const {
  std::vector<stretto::NamedValue> contents{{"--train-data", train_content_}};
  if (!validates_on_tail_) contents.push_back({"--val-data", validation_content_});
  return contents;
}

std::string ExampleData::description() const { return description_; }

}  // namespace apps
