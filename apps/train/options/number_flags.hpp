#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace apps {

// Empty if the text is a number as it is written in decimal, else the reason why not.
template <class Number>
std::string refuse_number(const std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [behind, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range) return "'" + text + "' is out of the range of 64 bits";
  const std::size_t digits = text.starts_with('-') ? 1 : 0;
  const bool is_octal = std::is_integral_v<Number> && text.size() > digits + 1 && text[digits] == '0';
  if (error == std::errc() && behind == end && std::isfinite(static_cast<double>(number)) && !is_octal) return {};
  return "'" + text + "' is no " + (std::is_integral_v<Number> ? "whole number" : "number") +
         (std::is_unsigned_v<Number> ? " from 0 on" : "");
}

// CLI11 takes an empty text for 0, 010 for 8, and what it can of numbers beyond 64 bits. Call it when all flags are there.
inline void check_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options([](CLI::Option*) { return true; })) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT")) option->check(refuse_number<std::int64_t>);
    if (type.starts_with("UINT")) option->check(refuse_number<std::uint64_t>);
    if (type.starts_with("FLOAT")) option->check(refuse_number<double>);
  }
}

}  // namespace apps
