from gradxform.tables.describe import *
