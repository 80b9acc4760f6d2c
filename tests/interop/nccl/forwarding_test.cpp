// What is not the door's goes to the real library with all its arguments, and its answer comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "interop/nccl/calls/answers.hpp"
#include "interop/nccl/libraries/real_nccl.hpp"
#include "interop/nccl/unique_id.hpp"
#include "support/variables.hpp"

namespace stretto::nccl_door {
namespace {

using testing::HasSubstr;

// The last call that came to the real library.
struct Seen {
  int function = -1;
  std::vector<std::string> arguments;  // their bytes
  bool marked_inside = false;
} seen;

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// A value that no other argument has.
template <class T>
T value_of(int number) {
  T value{};
  if constexpr (std::is_same_v<T, ncclUniqueId*>) {  // is read
    static std::array<ncclUniqueId, 16> ids{};
    return ids.data();
  } else if constexpr (std::is_same_v<T, ncclScalarResidence_t>) {
    return ncclScalarHostImmediate;  // the enumeration has no value that no other argument has
  } else if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(static_cast<std::uintptr_t>(0x1000 * (number + 1)));
  } else {
    const char byte = static_cast<char>(number + 1);
    std::memcpy(&value, &byte, 1);
    if constexpr (std::is_same_v<T, ncclUniqueId>) std::memset(&value, byte, sizeof value);
    return value;
  }
}

template <int number, class Type>
struct Recorder;
template <int number, class Result, class... Parameters>
struct Recorder<number, Result (*)(Parameters...)> {
  static Result called(Parameters... arguments) {
    seen = {number, {bytes_of(arguments)...}, inside_nccl()};
    return value_of<Result>(number % 7);
  }
  static void call_door(const char* name, Result (*door)(Parameters...)) {
    call_door(name, door, std::index_sequence_for<Parameters...>());
  }
  template <std::size_t... place>
  static void call_door(const char* name, Result (*door)(Parameters...), std::index_sequence<place...>) {
    seen = {};
    const std::tuple<Parameters...> given{value_of<Parameters>(static_cast<int>(place))...};
    const Result result = door(std::get<place>(given)...);
    EXPECT_EQ(seen.function, number) << name;
    EXPECT_EQ(seen.arguments, (std::vector<std::string>{bytes_of(std::get<place>(given))...})) << name;
    EXPECT_TRUE(seen.marked_inside) << name;
    EXPECT_EQ(bytes_of(result), bytes_of(value_of<Result>(number % 7))) << name;
  }
};

// The numbers of functions, by their places in the list.
enum Number {
#define STRETTO_NCCL_FUNCTION(name) number_of_##name,
  STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_FUNCTION)
#undef STRETTO_NCCL_FUNCTION
      all_functions
};

class Forwarding : public testing::Test {
 protected:
  RealNccl table;
  Forwarding() {
#define STRETTO_NCCL_FUNCTION(name) table.name.function = Recorder<number_of_##name, decltype(&::pnccl##name)>::called;
    STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_FUNCTION)
#undef STRETTO_NCCL_FUNCTION
    use_real_nccl(&table);
  }
  ~Forwarding() override { use_real_nccl(nullptr); }
};

// In a thread, which has had no error yet and is in no group.
void in_fresh_thread(const std::function<void()>& body) { std::thread(body).join(); }

TEST_F(Forwarding, EveryFunctionHandsOnAllItsArguments) {
  const Variable nccl_meets("NCCL_COMM_ID", "127.0.0.1:1");  // else the door makes ids itself
  in_fresh_thread([] {
#define STRETTO_NCCL_FUNCTION(name) \
  Recorder<number_of_##name, decltype(&::pnccl##name)>::call_door("nccl" #name, &::nccl##name);
    STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_FUNCTION)
#undef STRETTO_NCCL_FUNCTION
  });
  EXPECT_EQ(all_functions, 44);
}

TEST_F(Forwarding, IdsAreOursUnlessNcclIsToldWhereRanksMeet) {
  in_fresh_thread([] {
    seen = {};
    ncclUniqueId id{};
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    EXPECT_TRUE(is_ours(id));
    EXPECT_EQ(seen.function, -1);
    EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("NULL"));
  });
}

// As ncclCommInitAll does: what it gets must be NCCL's own.
TEST_F(Forwarding, WhatNcclAsksOfItselfStaysInNccl) {
  table.CommInitAll.function = [](ncclComm_t*, int, const int*) {
    ncclUniqueId id{};
    return ncclGetUniqueId(&id);
  };
  in_fresh_thread([] {
    seen = {};
    EXPECT_EQ(ncclCommInitAll(nullptr, 1, nullptr), value_of<ncclResult_t>(number_of_GetUniqueId % 7));
    EXPECT_EQ(seen.function, number_of_GetUniqueId);
    EXPECT_FALSE(inside_nccl());
  });
}

TEST_F(Forwarding, AFunctionThatTheLibraryLacksIsNamed) {
  table.AlltoAll.function = nullptr;
  in_fresh_thread([] {
    EXPECT_EQ(ncclAlltoAll(nullptr, nullptr, 1, ncclFloat, nullptr, nullptr), ncclInternalError);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("pncclAlltoAll"));
  });
}

TEST_F(Forwarding, TheLastErrorIsOfWhoeverFailedLast) {
  table.GetLastError.function = [](ncclComm_t) -> const char* { return "NCCL's"; };
  table.Bcast.function = [](void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclSystemError; };
  in_fresh_thread([] {
    EXPECT_STREQ(ncclGetLastError(nullptr), "NCCL's");
    ncclGetUniqueId(nullptr);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ncclGetUniqueId"));
    EXPECT_EQ(ncclBcast(nullptr, 1, ncclFloat, 0, nullptr, nullptr), ncclSystemError);
    EXPECT_STREQ(ncclGetLastError(nullptr), "NCCL's");
  });
  table.GroupStart.function = [] { return ncclSuccess; };
  table.GroupEnd.function = [] { return ncclSystemError; };
  in_fresh_thread([] {
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclBcast(nullptr, 1, ncclFloat, 0, nullptr, nullptr), ncclSystemError);
    EXPECT_EQ(ncclGroupEnd(), ncclSystemError);
    EXPECT_STREQ(ncclGetLastError(nullptr), "NCCL's");
  });
}

}  // namespace
}  // namespace stretto::nccl_door
