#include "apps/train/run/run_notes.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <span>

#include "apps/common/fail.hpp"
#include "stretto/models/families.hpp"
#include "stretto/overlap/schedule.hpp"

namespace apps {

using namespace stretto;

namespace {

// Flags whose change a resumed run accepts only with --allow-changes.
constexpr const char* model_and_data[] = {"--attention", "--model", "--seed", "--train-data"};
// Flags that no resumed run may change: which parts are on their way at a step follows from them.
constexpr const char* rounds[] = {"--replicas", "--diloco", "--diloco-fragments", "--diloco-delay", "--diloco-format"};
constexpr const char* course[] = {"--train-iters",
                                  "--lr",
                                  "--min-lr",
                                  "--lr-warmup-iters",
                                  "--global-batch-size",
                                  "--weight-decay",
                                  "--momentum",
                                  "--freeze-step",
                                  "--compression-chunk",
                                  "--compression-topk",
                                  "--compression-decay",
                                  "--clip-grad",
                                  "--dtype",
                                  "--grad-dtype",
                                  "--loss-scale",
                                  "--val-data",
                                  "--delay",
                                  "--delay-from",
                                  "--powersgd",
                                  "--powersgd-start",
                                  "--muon-scale",
                                  "--muon-lr",
                                  "--muon-momentum",
                                  "--muon-bf16",
                                  "--schedule",
                                  "--pipemare-annealing",
                                  "--pipemare-decay",
                                  "--clip-by-step-before"};

// Those of adapters, if there are any, say what the model is.
bool is_of_adapters(const std::string& flag) { return flag.starts_with("--lora") || flag == "--with-adapter"; }

// Schedules that empty the pipeline behind each step give the same weights.
std::string course_of(const std::string& flag, const std::string& value) {
  const bool is_window = std::ranges::any_of(all_window_kinds(), [&](const WindowKind& kind) { return value == kind.name; });
  return flag != "--schedule" || is_window ? value : "with a flush";
}

bool is_in(const auto& flags, const std::string& flag) { return std::ranges::find(flags, flag) != std::end(flags); }

// Those of replicas, if there are several.
bool is_of_replicas(const std::string& flag) {
  return flag == "--replicas" || flag.starts_with("--diloco") || flag.starts_with("--outer");
}

// The learning rate of the step behind a checkpoint; nothing if the notes do not say it.
std::optional<double> rate_after(std::int64_t step, const Notes& notes) {
  double numbers[4];
  const char* const flags[] = {"--lr", "--min-lr", "--lr-warmup-iters", "--train-iters"};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto found = notes.find(flags[i]);
    if (found == notes.end()) return std::nullopt;
    numbers[i] = std::strtod(found->second.c_str(), nullptr);
  }
  const auto steps = static_cast<std::int64_t>(numbers[3]);
  return CosineSchedule{numbers[0], numbers[1], static_cast<std::int64_t>(numbers[2]), steps}.at(std::min(step, steps));
}

}  // namespace

bool has_sizes(const Notes& notes) {
  return std::ranges::all_of(std::span(size_flags).first(required_size_flags),
                             [&](const SizeFlag& each) { return notes.contains(each.flag); });
}

bool take_saved_model(const CLI::App& app, const ModelFlags& flags, const std::string& checkpoint, DecoderShape& model,
                      kernels::AttentionMask& mask) {
  const LoadedCheckpoint loaded = read_notes(checkpoint);
  if (!has_sizes(loaded.notes)) return false;
  const std::string index = checkpoint + "/index.json";
  const auto note = loaded.notes.find("--model");
  DecoderShape saved;
  if (note != loaded.notes.end() && note->second != "gpt2") {
    saved = decoder_shape_from_config(note->second, index);
    saved.sequence = loaded.number("--seq-length", saved.sequence);
  } else {
    for (const auto& [flag, size] : size_flags) saved.*size = loaded.number(flag, 0);
  }
  model = saved_model(app, flags, saved, index, false);
  const auto attention = loaded.notes.find("--attention");
  if (attention != loaded.notes.end() && app.count("--attention") == 0) mask = attention_mask_from_text(attention->second);
  return true;
}

Notes run_notes(const std::vector<NamedValue>& values, const std::vector<NamedValue>& data) {
  Notes notes;
  const bool adapts =
      std::ranges::any_of(values, [](const NamedValue& each) { return each.name == "--lora" && each.value != "0"; });
  const bool replicates =
      std::ranges::any_of(values, [](const NamedValue& each) { return each.name == "--replicas" && each.value != "1"; });
  for (const auto& [flag, value] : values) {
    const bool is_size =
        std::ranges::any_of(size_flags, [&, &name = flag](const SizeFlag& each) { return name == each.flag; });
    const bool of_all = is_in(model_and_data, flag) || is_in(course, flag);
    if (is_size || (adapts && is_of_adapters(flag)) || (replicates && is_of_replicas(flag)) || of_all) {
      notes[flag] = course_of(flag, value);
    }
  }
  for (const char* const flag : {"--train-data", "--val-data"}) notes.erase(flag);  // a path; its content counts
  for (const auto& [flag, content] : data) notes[flag] = content;
  return notes;
}

std::string changes_of_run(const LoadedCheckpoint& loaded, const Notes& now, bool allowed) {
  std::vector<std::string> changes;
  for (const auto& [flag, value] : now) {
    const auto saved = loaded.notes.find(flag);
    if (saved == loaded.notes.end() || saved->second == value) continue;
    require(
        !is_in(rounds, flag),
        "{} is {}, and {} in the checkpoint of step {}, in the middle of whose rounds the run goes on; give what it was, or "
        "begin with its weights by --load.",
        flag, value, saved->second, loaded.step);
    require(
        allowed || (!is_in(model_and_data, flag) && !is_of_adapters(flag)),
        "{} is '{}', and '{}' in the checkpoint of step {}: that is another model or other data; give what it was, or add "
        "--allow-changes.",
        flag, value, saved->second, loaded.step);
    const auto said = [](const std::string& text) { return text.empty() ? "left out" : text; };
    changes.push_back(fmt::format("{} {} instead of {}", flag, said(value), said(saved->second)));
  }
  if (changes.empty()) return {};
  std::string line = fmt::format("Goes on after step {} with {}", loaded.step, fmt::join(changes, ", "));
  const std::optional<double> before = rate_after(loaded.step, loaded.notes), after = rate_after(loaded.step, now);
  if (before && after && *before != *after) {
    line += fmt::format("; the learning rate of the next step is {:.2e} instead of {:.2e}", *after, *before);
  }
  return line + ".";
}

}  // namespace apps
