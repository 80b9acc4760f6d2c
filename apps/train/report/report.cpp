#include "apps/train/report/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "apps/common/fail.hpp"
#include "apps/common/size_text.hpp"
#include "apps/train/report/loss_svg.hpp"
#include "stretto/output_file.hpp"
#include "stretto/stream.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

std::string time_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 6000) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string step_line(const StepReport& r, double seconds_left) {
  std::string line = fmt::format(
      "step {:>4}/{} | loss {:.6f} | norm {:.4g} | lr {:.2e} | {:.1f} ms | {:.0f} tok/s | {:.1f}% MFU | "
      "comm {:.1f} ms exposed {:.1f} ms | sent {} | mem {}",
      r.step, r.steps, r.loss, r.gradient_norm, r.lr, r.seconds * 1e3, r.tokens_per_second, r.mfu * 100,
      r.traffic.busy_seconds * 1e3, r.traffic.exposed_seconds * 1e3, size_text(static_cast<double>(r.traffic.bytes_sent)),
      size_text(static_cast<double>(r.memory_bytes)));
  if (r.pipeline) {
    line += fmt::format(" | bubble {:.1f}% (simulated {:.1f}%)", r.pipeline->bubble() * 100,
                        r.pipeline->simulated_bubble() * 100);
  }
  if (r.loss_scale) line += fmt::format(" | scale {:g}{}", *r.loss_scale, r.skipped ? " skipped" : "");
  if (r.delay > 0) line += fmt::format(" | delay {}", r.delay);
  if (r.merged_fragment) line += fmt::format(" | merged {}", *r.merged_fragment);
  if (r.slowest && r.slowest->named) {
    line +=
        fmt::format(" | rank {} is slow: others wait {:.0f}% of the step for it", r.slowest->rank, r.slowest->share * 100);
  }
  if (r.validation_loss) line += fmt::format(" | val loss {:.4f}", *r.validation_loss);
  if (r.step < r.steps) line += fmt::format(" | {} left", time_text(seconds_left));
  return line;
}

}  // namespace

void make_log_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && access(path.c_str(), W_OK | X_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error) fail(ErrorCode::io, "Cannot write to --log-dir {}: {}.", path, error.message());
  for (const char* const file : {"/loss.svg", "/comm_report.json"}) stretto::check_output_file(path + file);
}

Reporter::Reporter(const std::string& log_directory, std::int64_t log_interval)
    : terminal_(isatty(STDOUT_FILENO) != 0),
      log_interval_(log_interval),
      log_directory_(log_directory),
      began_(stretto::now_seconds()) {
  if (log_directory.empty()) return;
  lock_ = std::make_unique<DirectoryLock>("--log-dir", log_directory);
  metrics_ = std::make_unique<MetricsFile>(log_directory + "/metrics.jsonl");
}

void Reporter::begin_after(std::int64_t step) {
  begins_after_ = step;
  began_ = stretto::now_seconds();
  if (!metrics_) return;
  metrics_->keep_first([&](const std::string& line) {
    const auto metrics = nlohmann::json::parse(line, nullptr, false);
    const auto number = [&](const char* key) {  // null is NaN or infinity, which JSON has not
      return metrics.contains(key) && metrics[key].is_number() ? std::optional(metrics[key].get<double>()) : std::nullopt;
    };
    const bool has_step = metrics.is_object() && metrics.contains("step") && metrics["step"].is_number_unsigned();
    if (!has_step || metrics["step"].get<std::uint64_t>() > static_cast<std::uint64_t>(step)) return false;
    if (const std::optional<double> loss = number("loss")) {
      add_to_curves(metrics["step"].get<std::int64_t>(), *loss, number("val_loss"));
    }
    return true;
  });
}

void Reporter::add_to_curves(std::int64_t step, double loss, std::optional<double> validation_loss) {
  if (log_directory_.empty() || !std::isfinite(loss)) return;
  losses_.add(static_cast<double>(step), loss);
  if (validation_loss && std::isfinite(*validation_loss)) {
    validation_losses_.add(static_cast<double>(step), *validation_loss);
  }
}

void Reporter::say(const std::string& line) {
  // The bar is the last line of a terminal; other lines are printed above it.
  const std::string text = (terminal_ ? "\r\033[K" : "") + line + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (terminal_ && last_.steps > 0) draw_bar();
  std::fflush(stdout);
}

void Reporter::step(const StepReport& report) {
  last_ = report;
  add_to_curves(report.step, report.loss, report.validation_loss);
  const bool listed = report.step == 1 || report.step == report.steps || report.step % log_interval_ == 0 ||
                      report.validation_loss || report.skipped || (report.slowest && report.slowest->named);
  if (listed) {
    say(step_line(report, seconds_left()));
  } else if (terminal_) {
    draw_bar();
  }
  if (!metrics_) return;
  if (report.validation_loss) draw_losses();
  nlohmann::ordered_json metrics{{"step", report.step},
                                 {"loss", report.loss},
                                 {"grad_norm", report.gradient_norm},
                                 {"lr", report.lr},
                                 {"step_ms", report.seconds * 1e3},
                                 {"tokens_per_s", report.tokens_per_second},
                                 {"mfu", report.mfu},
                                 {"comm_ms", report.traffic.busy_seconds * 1e3},
                                 {"exposed_ms", report.traffic.exposed_seconds * 1e3},
                                 {"bytes_sent", report.traffic.bytes_sent},
                                 {"mem_bytes", report.memory_bytes}};
  if (report.pipeline) {
    metrics["bubble"] = report.pipeline->bubble();
    metrics["simulated_bubble"] = report.pipeline->simulated_bubble();
  }
  if (report.loss_scale) {
    metrics["loss_scale"] = *report.loss_scale;
    metrics["skipped"] = report.skipped;
  }
  if (report.delay > 0) metrics["delay"] = report.delay;
  if (report.merged_fragment) metrics["merged_fragment"] = *report.merged_fragment;
  if (report.slowest) {
    metrics["slowest_rank"] = report.slowest->rank;
    metrics["slowest_share"] = report.slowest->share;
  }
  if (report.validation_loss) metrics["val_loss"] = *report.validation_loss;
  metrics_->append(metrics.dump());  // NaN and infinity become null
}

// By the mean of all steps, with what lies between them.
double Reporter::seconds_left() const {
  return (stretto::now_seconds() - began_) / static_cast<double>(last_.step - begins_after_) *
         static_cast<double>(last_.steps - last_.step);
}

void Reporter::draw_bar() {
  constexpr int width = 30;
  const auto filled = static_cast<std::size_t>(width * last_.step / last_.steps);
  const auto left = static_cast<std::int64_t>(seconds_left());
  const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
  std::fputs(fmt::format("\r\033[K[{}] {}/{}, {}:{:02} left", bar, last_.step, last_.steps, left / 60, left % 60).c_str(),
             stdout);
  std::fflush(stdout);
}

void Reporter::finish(const std::vector<stretto::Record>& records) {
  if (terminal_ && last_.steps > 0) std::fputs("\r\033[K", stdout);
  last_ = {};
  std::map<std::tuple<std::string, std::string, std::string, std::string>, stretto::Traffic> sums;
  stretto::Traffic total;
  for (const stretto::Record& record : records) {
    sums[{record.group, stretto::name(record.collective), stretto::name(record.method.algorithm), record.tag}] += record;
    total += record;
  }
  if (!records.empty()) {
    say(fmt::format("\nCommunication of rank 0 (the last {1} of {0} operations):", records.back().sequence + 1,
                    records.size()));
    std::size_t width = 7;  // of the groups' names
    for (const auto& entry : sums) width = std::max(width, std::get<0>(entry.first).size() + 1);
    const auto row = [&](const auto& group, const auto& what, const auto& how, const auto& tag, const auto& count,
                         const auto& sent, const auto& busy, const auto& exposed) {
      say(fmt::format("  {:<{}}{:<15}{:<28}{:<26}{:>8}{:>13}{:>12}{:>13}", group, width, what, how, tag, count, sent, busy,
                      exposed));
    };
    row("group", "operation", "algorithm", "for", "times", "sent", "busy ms", "exposed ms");
    const auto sum_row = [&](const auto& group, const auto& what, const auto& how, const auto& tag,
                             const stretto::Traffic& t) {
      row(group, what, how, tag, std::to_string(t.operations), size_text(static_cast<double>(t.bytes_sent)),
          fmt::format("{:.1f}", t.busy_seconds * 1e3), fmt::format("{:.1f}", t.exposed_seconds * 1e3));
    };
    for (const auto& [key, traffic] : sums)
      sum_row(std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), traffic);
    sum_row("all", "", "", "", total);
  }
  if (!metrics_) return;
  draw_losses();
  say(fmt::format("{0}/loss.svg shows the losses, and {0}/metrics.jsonl has the figures of every step.", log_directory_));
}

void Reporter::draw_losses() const {
  const std::vector<CurvePoint> losses = losses_.points();
  if (losses.empty()) return;
  const std::string path = log_directory_ + "/loss.svg";
  stretto::write_output_file(path, loss_svg(losses, validation_losses_.points()));
}

}  // namespace apps
