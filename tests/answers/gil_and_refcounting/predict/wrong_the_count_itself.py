REJECTED_WITH = "every number is one too large"


def predictions():
    return {
        "another_name": 2,
        "nothing_returned": 1,
        "three_times_in_a_list": 4,
        "one_list_held_twice": 2,
        "key_and_value": 3,
        "deep_copy": 1,
        "weak_reference": 1,
        "default_argument": 2,
        "two_closures": 2,
        "cycle": 2,
        "cycle_collected": 1,
        "error_kept": 3,
        "text_of_the_error": 1,
        "view": 2,
        "detached": 1,
        "saved_for_backward": 2,
    }
