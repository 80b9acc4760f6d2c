#include "stretto/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>

#include "core/fail.hpp"

namespace stretto {
namespace {

TEST(Errors, EveryCodeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const ErrorCode code : {ErrorCode::invalid_argument, ErrorCode::unavailable, ErrorCode::io, ErrorCode::timeout,
                               ErrorCode::peer_lost, ErrorCode::peer_gave_up, ErrorCode::internal}) {
    EXPECT_TRUE(names.insert(name(code)).second) << name(code);
  }
  EXPECT_EQ(names.count("unknown"), 0U);
}

TEST(Errors, OfTheStandardLibraryBecomeSentences) {
  EXPECT_EQ(error_sentence(Error(ErrorCode::io, "It is so.")), "It is so.");
  EXPECT_EQ(error_sentence(std::runtime_error("It is so.")), "It is so.");
  EXPECT_EQ(error_sentence(std::bad_alloc()),
            "Memory has run out (std::bad_alloc); give this process more of it, or ask for less.");
  EXPECT_EQ(error_sentence(std::length_error("vector::reserve")),
            "A size is beyond any memory (vector::reserve); give smaller numbers.");
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_EQ(error_sentence(no_thread),
            "A thread could not be started (Resource temporarily unavailable); raise the limit of processes (ulimit -u, "
            "pids.max), or start fewer.");
  const std::filesystem::filesystem_error file("cannot rename", "a", "b",
                                               std::make_error_code(std::errc::permission_denied));
  EXPECT_EQ(error_sentence(file), "a or b cannot be used: Permission denied.");
}

TEST(Errors, CarryTheirCodeAndASentence) {
  try {
    fail(ErrorCode::io, "Cannot read {}: {}.", "the text", errno_text(ENOENT));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_STREQ(error.what(), "Cannot read the text: No such file or directory.");
  }
}

TEST(Errors, OfAWrongArgumentAndOfABugDiffer) {
  const auto code_of = [](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::io;
  };
  EXPECT_EQ(code_of([] { require(false, "wrong"); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { ensure(false, "a bug"); }), ErrorCode::internal);
  EXPECT_NO_THROW(require(true, "right"));
}

}  // namespace
}  // namespace stretto
