// A plan as text.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/fail.hpp"
#include "core/files/text_lines.hpp"
#include "stretto/plan.hpp"

namespace stretto {
namespace {

constexpr std::array<const char*, 14> kind_names = {"send",     "recv",       "recv_reduce",       "copy",       "reduce",
                                                    "quantize", "dequantize", "dequantize_reduce", "requantize", "signal",
                                                    "wait",     "read",       "read_reduce",       "copy_to_all"};
constexpr std::array<const char*, 3> buffer_names = {"input", "output", "scratch"};

bool has_destination(StepKind kind) { return kind != StepKind::send && kind != StepKind::signal && kind != StepKind::wait; }
bool has_source(StepKind kind) { return kind != StepKind::recv && kind != StepKind::signal && kind != StepKind::wait; }
bool leaves_errors(StepKind kind) { return kind == StepKind::quantize || kind == StepKind::requantize; }
bool adds_vectors(StepKind kind) { return kind == StepKind::dequantize_reduce || kind == StepKind::requantize; }
// The word before a step's peer; null: it has none.
const char* peer_word(StepKind kind) {
  switch (kind) {
    case StepKind::send: return "to";
    case StepKind::recv: return "from";
    case StepKind::recv_reduce: return "with";
    case StepKind::wait: return "for";
    case StepKind::read:
    case StepKind::read_reduce:
    case StepKind::copy_to_all: return "of";
    default: return nullptr;
  }
}

std::string text_of(const Slice& slice) {
  const char* const buffer =
      slice.buffer == Buffer::packed ? name(slice.format) : buffer_names[static_cast<std::size_t>(slice.buffer)];
  return fmt::format("{}[{}..{})", buffer, slice.offset, slice.offset + slice.count);
}

std::string text_of(const Step& step) {
  std::string text = kind_names[static_cast<std::size_t>(step.kind)];
  if (has_destination(step.kind)) text += ' ' + text_of(step.destination);
  if (has_destination(step.kind) && has_source(step.kind)) text += " =";
  if (has_source(step.kind)) text += ' ' + text_of(step.source);
  if (const char* const word = peer_word(step.kind)) {
    text += fmt::format(" {} {}", word, step.peer == everybody ? "everybody" : fmt::format("{}", step.peer));
  }
  if (adds_vectors(step.kind)) text += fmt::format(" vectors {} apart {}", step.vectors, step.apart);
  if (leaves_errors(step.kind)) text += fmt::format(" errors {} {}", name(step.hop), step.residual);
  if (step.finishes) text += " finishes";
  return text;
}

template <class Numbers>
std::string joined(const Numbers& numbers) {
  std::string text;
  for (const auto number : numbers) text += fmt::format(" {}", number);
  return text;
}

// Calls visit(key, field) for each number, or list of numbers, of a request that a text has only if it is not the default.
template <class Request, class Visit>
void for_each_number(Request& request, Visit visit) {
  visit("root", request.root);
  visit("ranks_per_node", request.ranks_per_node);
  visit("nodes_per_pod", request.nodes_per_pod);
  visit("servers", request.servers);
}
template <class Request, class Visit>
void for_each_list(Request& request, Visit visit) {
  visit("counts", request.counts);
  visit("receive_counts", request.receive_counts);
  visit("node_sizes", request.node_sizes);
}

// The words of one step, which are taken one after the other.
class StepWords {
 public:
  StepWords(const TextLines& lines, const std::string& text) : lines_(lines), words_(words_of(text)) {}

  Step step() {
    Step step;
    const std::string kind = take("a step's kind");
    std::size_t number = 0;
    while (number < kind_names.size() && kind != kind_names[number]) ++number;
    lines_.demand(number < kind_names.size(), fmt::format("'{}' is no kind of step", kind.substr(0, 40)));
    step.kind = static_cast<StepKind>(number);
    if (has_destination(step.kind)) step.destination = slice();
    if (has_destination(step.kind) && has_source(step.kind)) expect("=");
    if (has_source(step.kind)) step.source = slice();
    if (const char* const word = peer_word(step.kind)) {
      expect(word);
      const std::string peer = take("a rank");
      step.peer = peer == "everybody" ? everybody : lines_.number<std::int32_t>(peer);
    }
    if (adds_vectors(step.kind)) {
      expect("vectors");
      step.vectors = lines_.number<int>(take("a number"));
      expect("apart");
      step.apart = lines_.number<std::int64_t>(take("a number"));
    }
    if (leaves_errors(step.kind)) {
      expect("errors");
      step.hop = hop(take("a hop"));
      step.residual = lines_.number<std::int64_t>(take("a number"));
    }
    if (at_ < words_.size()) {
      expect("finishes");
      step.finishes = true;
    }
    lines_.demand(at_ == words_.size(), "a comma is expected between two steps");
    return step;
  }

 private:
  std::string take(const char* what) {
    lines_.demand(at_ < words_.size(), fmt::format("{} is expected at the end of a step", what));
    return words_[at_++];
  }
  void expect(const std::string& word) {
    const std::string found = take(word.c_str());
    lines_.demand(found == word, fmt::format("'{}' is expected in place of '{}'", word, found.substr(0, 40)));
  }
  Hop hop(const std::string& word) const {
    for (int i = 0; i < hops; ++i) {
      if (word == name(static_cast<Hop>(i))) return static_cast<Hop>(i);
    }
    lines_.demand(false, fmt::format("'{}' is no hop", word.substr(0, 40)));
    return {};
  }
  Slice slice() {
    const std::string word = take("a slice");
    const std::size_t open = word.find('['), dots = word.find(".."), close = word.find(')');
    lines_.demand(open < dots && dots < close && close + 1 == word.size(),
                  fmt::format("'{}' is no slice, such as input[0..8)", word.substr(0, 40)));
    Slice slice;
    const std::string buffer = word.substr(0, open);
    std::size_t number = 0;
    while (number < buffer_names.size() && buffer != buffer_names[number]) ++number;
    slice.buffer = static_cast<Buffer>(number);
    if (slice.buffer == Buffer::packed) slice.format = format(lines_, buffer);
    slice.offset = lines_.number<std::int64_t>(word.substr(open + 1, dots - open - 1));
    const auto end = lines_.number<std::int64_t>(word.substr(dots + 2, close - dots - 2));
    lines_.demand(slice.offset >= 0 && end >= slice.offset, fmt::format("'{}' ends before it begins", word.substr(0, 40)));
    slice.count = end - slice.offset;
    return slice;
  }

 public:
  static QuantizedFormat format(const TextLines& lines, const std::string& word) {
    for (int i = 1; i < quantized_formats; ++i) {
      if (word == name(static_cast<QuantizedFormat>(i))) return static_cast<QuantizedFormat>(i);
    }
    lines.demand(false, fmt::format("'{}' is neither a buffer nor a quantized format", word.substr(0, 40)));
    return {};
  }

 private:
  const TextLines& lines_;
  std::vector<std::string> words_;
  std::size_t at_ = 0;
};

// A line of the plan that is neither one of the first lines nor a round. Returns false if it is a round.
bool read_field(Plan& plan, const TextLines& lines, const std::vector<std::string>& words) {
  const auto value = [&](std::size_t i) {
    lines.demand(i < words.size() && words.size() <= i + 1, fmt::format("'{}' takes {} values", words[0], i));
    return words[i];
  };
  bool known = false;
  for_each_number(plan.request, [&](const char* key, int& field) {
    if (words[0] != key) return;
    field = lines.number<int>(value(1));
    known = true;
  });
  for_each_list(plan.request, [&](const char* key, auto& field) {
    if (words[0] != key) return;
    field.clear();
    for (std::size_t i = 1; i < words.size(); ++i) {
      field.push_back(lines.number<typename std::decay_t<decltype(field)>::value_type>(words[i]));
    }
    known = true;
  });
  if (words[0] == "quantized" || words[0] == "quantized_result") {
    (words[0] == "quantized" ? plan.request.quantized : plan.request.quantized_result) = StepWords::format(lines, value(1));
    return true;
  }
  if (words[0] == "scratch") {
    plan.scratch_count = lines.number<std::int64_t>(value(1));
    return true;
  }
  if (words[0] == "packed") {
    const auto count = lines.number<std::int64_t>(value(2));
    plan.packed_counts[static_cast<std::size_t>(StepWords::format(lines, words[1]))] = count;
    return true;
  }
  if (words[0] == "errors") {
    const auto count = lines.number<std::int64_t>(value(2));
    for (int i = 0; i < hops; ++i) {
      if (words[1] != name(static_cast<Hop>(i))) continue;
      plan.residual_counts[static_cast<std::size_t>(i)] = count;
      known = true;
    }
    lines.demand(known, fmt::format("'{}' is no hop", words[1].substr(0, 40)));
  }
  return known;
}

}  // namespace

std::string Plan::to_string() const {
  std::string text = fmt::format("{} by {}, rank {} of {}, {} elements, {} of scratch", stretto::name(request.collective),
                                 request.method.algorithm == Algorithm::user ? name : stretto::to_string(request.method),
                                 request.rank, ranks_of(request), request.count, scratch_count);
  for (int format = 0; format < quantized_formats; ++format) {
    const std::int64_t count = packed_counts[static_cast<std::size_t>(format)];
    if (count > 0) text += fmt::format(", {} packed in {}", count, stretto::name(static_cast<QuantizedFormat>(format)));
  }
  text += '\n';
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    std::size_t at = 0;
    for (std::size_t round = 0; round < lanes[l].round_ends.size(); ++round) {
      for (; at < lanes[l].round_ends[round]; ++at) {
        text += fmt::format("  lane {} round {}: {}\n", l, round, text_of(lanes[l].steps[at]));
      }
    }
  }
  return text;
}

std::string to_text(const Plan& plan) {
  const PlanRequest& request = plan.request;
  std::string text =
      fmt::format("plan {}\ncollective {}\nmethod {}\nrank {}\nsize {}\ncount {}\n", plan.name, name(request.collective),
                  to_string(request.method), request.rank, request.size, request.count);
  for_each_number(request, [&](const char* key, int field) {
    if (field != 0) text += fmt::format("{} {}\n", key, field);
  });
  for_each_list(request, [&](const char* key, const auto& field) {
    if (!field.empty()) text += key + joined(field) + '\n';
  });
  if (request.quantized != QuantizedFormat::none) text += fmt::format("quantized {}\n", name(request.quantized));
  if (request.quantized_result != QuantizedFormat::none) {
    text += fmt::format("quantized_result {}\n", name(request.quantized_result));
  }
  if (plan.scratch_count != 0) text += fmt::format("scratch {}\n", plan.scratch_count);
  for (int i = 1; i < quantized_formats; ++i) {
    const std::int64_t count = plan.packed_counts[static_cast<std::size_t>(i)];
    if (count != 0) text += fmt::format("packed {} {}\n", name(static_cast<QuantizedFormat>(i)), count);
  }
  for (int i = 0; i < hops; ++i) {
    const std::int64_t count = plan.residual_counts[static_cast<std::size_t>(i)];
    if (count != 0) text += fmt::format("errors {} {}\n", name(static_cast<Hop>(i)), count);
  }
  for (const Lane& lane : plan.lanes) {
    text += "lane\n";
    std::size_t at = 0;
    for (const std::size_t end : lane.round_ends) {
      for (const std::size_t begin = at; at < end; ++at) text += (at == begin ? "" : ", ") + text_of(lane.steps[at]);
      text += '\n';
    }
  }
  return text;
}

Plan plan_from_text(const std::string& text) {
  TextLines lines(text, "plan");
  Plan plan;
  PlanRequest& request = plan.request;
  const auto named = [&](const char* key, auto from_name) {
    const std::string word = lines.value(key);
    try {
      return from_name(word);
    } catch (const Error& unknown) {
      lines.demand(false, unknown.what());
      throw;
    }
  };
  plan.name = lines.value("plan");
  lines.demand(is_plain_name(plan.name), "a name has letters, digits, -, _ and . only");
  request.collective = named("collective", collective_from_name);
  request.method = named("method", method_from_text);
  request.rank = lines.number<int>(lines.value("rank"));
  request.size = lines.number<int>(lines.value("size"));
  request.count = lines.number<std::int64_t>(lines.value("count"));
  while (lines.next()) {
    const std::vector<std::string> words = words_of(lines.line());
    if (words[0] == "lane" && words.size() == 1) {
      plan.lanes.emplace_back();
      continue;
    }
    if (plan.lanes.empty()) {
      lines.demand(read_field(plan, lines, words), "'lane' is expected before the first round");
      continue;
    }
    Lane& lane = plan.lanes.back();
    for (std::size_t begin = 0; begin <= lines.line().size();) {
      const std::size_t comma = std::min(lines.line().find(',', begin), lines.line().size());
      lane.steps.push_back(StepWords(lines, lines.line().substr(begin, comma - begin)).step());
      begin = comma + 1;
    }
    lane.round_ends.push_back(lane.steps.size());
  }
  return plan;
}

}  // namespace stretto
